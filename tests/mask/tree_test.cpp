// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using masks::TreeMask;
using masks::TreeOrder;
using testing::refusal;
using testing::Table;

using Numbers = std::vector<std::int64_t>;

/// The given node of every token of the sequence, or −1 in the padding.
Numbers nodes_of_tokens(const TreeMask& tree, const Numbers& lengths) {
  Numbers node(static_cast<std::size_t>(tree.mask.shape().columns), -1);
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    std::fill_n(node.begin() + tree.positions[k], lengths[k], static_cast<std::int64_t>(k));
  }
  return node;
}

bool is_ancestor_or_self(const Table& parents, std::int64_t ancestor, std::int64_t node) {
  while (node >= 0 && node != ancestor) node = parents[node];
  return node == ancestor;
}

void expect_tree(const Numbers& parents, const Numbers& lengths, std::int64_t tokens, TreeOrder order) {
  const TreeMask tree = masks::tree(parents, lengths, tokens, order);
  const Table node(nodes_of_tokens(tree, lengths));
  testing::expect_visible(tree.mask, [&, parent = Table(parents)](auto i, auto j) {
    return node[i] >= 0 && node[j] >= 0 && j <= i && is_ancestor_or_self(parent, node[j], node[i]);
  });
}

/// A random forest in random order: parents may come after their children.
Numbers random_forest(std::mt19937_64& random, std::size_t nodes) {
  std::vector<std::size_t> name(nodes);
  std::iota(name.begin(), name.end(), std::size_t{0});
  for (std::size_t k = nodes; k > 1; --k) std::swap(name[k - 1], name[random() % k]);
  Numbers parents(nodes);
  for (std::size_t k = 0; k < nodes; ++k) {
    const std::int64_t drawn = testing::draw(random, -1, static_cast<std::int64_t>(k) - 1);
    parents[name[k]] = drawn < 0 ? -1 : static_cast<std::int64_t>(name[static_cast<std::size_t>(drawn)]);
  }
  return parents;
}

TEST(Tree, EveryNodeSeesItsAncestorsAndItselfInAnyGivenOrder) {
  std::mt19937_64 random(5);
  for (std::size_t nodes = 0; nodes < 24; ++nodes) {
    Numbers lengths(nodes);
    for (std::int64_t& length : lengths) length = testing::draw(random, 0, 6);
    const std::int64_t used = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    expect_tree(random_forest(random, nodes), lengths, used + 3, TreeOrder::depth_first);
  }
}

TEST(Tree, KeepsTheGivenOrderWhenAsked) {
  const Numbers parents = {-1, 0, 1, 1, 0, -1, 5};
  const Numbers lengths = {3, 2, 4, 0, 1, 2, 2};
  expect_tree(parents, lengths, 15, TreeOrder::as_given);
  EXPECT_EQ(masks::tree(parents, lengths, 15, TreeOrder::as_given).positions, (Numbers{0, 3, 5, 9, 9, 10, 12}));
}

TEST(Tree, PositionsSayWhereEachGivenNodeWent) {
  // Node 3 is the root; its children 0 and 2 follow in the given order, 0 with its child 1.
  EXPECT_EQ(masks::tree(Numbers{3, 0, 3, -1}, Numbers{2, 5, 7, 1}, 15).positions, (Numbers{1, 3, 8, 0}));
}

TEST(Tree, OfAMillionNodesInOneChainIsNoDeepRecursion) {
  Numbers parents(1'000'000);
  std::iota(parents.begin(), parents.end(), std::int64_t{-1});
  const Mask mask = masks::tree(parents, Numbers(parents.size(), 1), 1'000'000).mask;
  EXPECT_TRUE(mask.visible(0, 0, 999'999, 0));
  EXPECT_FALSE(mask.visible(0, 0, 0, 1));
}

TEST(Tree, RefusesACycle) {
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{-1, 2, 3, 1}, Numbers{1, 1, 1, 1}, 4);
            }),
            "tree: the ancestors of node 1 form a cycle; give every tree a root, whose parent is -1");
}

TEST(Tree, RefusesAParentThatIsNoNode) {
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{-1, 2}, Numbers{1, 1}, 4);
            }),
            "tree: parents[1] is 2; give the index of a node, below 2, or -1 for a root");
  EXPECT_EQ(refusal([] { masks::tree(Numbers{-2}, Numbers{1}, 4); }),
            "tree: parents[0] is -2; give the index of a node, below 1, or -1 for a root");
}

TEST(Tree, RefusesAGivenOrderWithAParentAfterItsChild) {
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{1, -1}, Numbers{1, 1}, 4, TreeOrder::as_given);
            }),
            "tree: parents[0] is 1, not an earlier node; list parents first or use TreeOrder::depth_first");
}

TEST(Tree, RefusesAGivenOrderThatTearsASubtree) {
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{-1, 0, 0, 1}, Numbers{1, 1, 1, 1}, 4, TreeOrder::as_given);
            }),
            "tree: parents[3] is 1 but another subtree lies between the two; keep each subtree together or use "
            "TreeOrder::depth_first");
}

TEST(Tree, RefusesLengthsThatDoNotMatch) {
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{-1, 0}, Numbers{1}, 4);
            }),
            "tree: 2 parents and 1 length; give both of every node");
  EXPECT_EQ(refusal([] {
              masks::tree(Numbers{-1, 0}, Numbers{1, 5}, 4);
            }),
            "tree: lengths add up to 6 tokens but tokens is 4; give tokens >= 6 or shorten the lengths");
}

}  // namespace
}  // namespace flashmask
