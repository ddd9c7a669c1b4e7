// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "flashmask/builders.h"
#include "mask/visibility.h"
#include "source_folder.h"

namespace flashmask {
namespace {

using masks::TreeSight;
using testing::expect_visible;
using testing::refusal;
using testing::Table;
using Numbers = std::vector<std::int64_t>;

bool is_ancestor_or_self(const Table& parents, std::int64_t ancestor, std::int64_t node) {
  while (node > ancestor) node = parents[node];
  return node == ancestor;
}

/// Every node against the prefix, then against the nodes.
void expect_tree(const Mask& mask, const Numbers& parents, std::int64_t tokens, std::int64_t prefix) {
  ASSERT_EQ(mask.shape(), (MaskShape{1, 1, tokens, prefix + tokens}));
  expect_visible(mask, [&, parent = Table(parents), nodes = std::ssize(parents)](auto i, auto j) {
    return i < nodes && (j < prefix || is_ancestor_or_self(parent, j - prefix, i));
  });
}

TEST(TreeInOrder, EveryNodeSeesItsAncestorsItselfAndThePrefix) {
  std::mt19937_64 random(6);
  for (const std::int64_t nodes : {0, 1, 2, 9, 64, 65, 150}) {
    Numbers parents;
    for (std::int64_t k = 0; k < nodes; ++k) parents.push_back(testing::draw(random, -1, k - 1));
    for (const std::int64_t prefix : {0, 1, 64, 77}) {
      for (const std::int64_t padding : {0, 3}) {
        expect_tree(masks::tree_in_order(parents, nodes + padding, prefix), parents, nodes + padding, prefix);
      }
    }
  }
}

TEST(TreeInOrder, OfOneChainIsCausal) {
  Numbers parents(300);
  std::iota(parents.begin(), parents.end(), std::int64_t{-1});
  const Mask mask = masks::tree_in_order(parents, 300, 50);
  EXPECT_EQ(expand(mask), expand(masks::causal(300, 350)));
  EXPECT_EQ(mask.lowered().form(), MaskForm::intervals);
}

TEST(TreeInOrder, ShowsOnlySelfAndParentWhenAsked) {
  std::mt19937_64 random(7);
  Numbers parents;
  for (std::int64_t k = 0; k < 90; ++k)
    parents.push_back(testing::draw(random, std::max<std::int64_t>(k - 3, -1), k - 1));
  expect_visible(masks::tree_in_order(parents, 92, 5, TreeSight::parent), [parent = Table(parents)](auto i, auto j) {
    return i < 90 && (j < 5 || j - 5 == i || j - 5 == parent[i]);
  });
}

/// The trees that speculative decoders ship.
std::vector<std::pair<std::string, Numbers>> shipped_trees() {
  std::ifstream file(test::source_folder() + "/data/spec_trees.csv");
  std::vector<std::pair<std::string, Numbers>> trees;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const std::size_t comma = line.find(',');
    std::istringstream numbers(line.substr(comma + 1));
    trees.emplace_back(line.substr(0, comma), Numbers(std::istream_iterator<std::int64_t>(numbers), {}));
  }
  return trees;
}

TEST(TreeInOrder, TakesTheTreesOfSpeculativeDecodersAsTheyAre) {
  const auto trees = shipped_trees();
  ASSERT_EQ(trees.size(), 7U);
  for (const auto& [name, parents] : trees) {
    SCOPED_TRACE(name);
    const std::int64_t nodes = std::ssize(parents);
    expect_tree(masks::tree_in_order(parents, nodes, 37), parents, nodes, 37);
  }
  EXPECT_EQ(trees[0].first, "medusa/mc_sim_7b_63");
  EXPECT_EQ(trees[0].second.size(), 64U);  // the last accepted token and 63 candidates
}

TEST(TreeInOrder, RefusesAParentThatDoesNotComeFirst) {
  EXPECT_EQ(refusal([] {
              masks::tree_in_order(Numbers{-1, 2, 0}, 3);
            }),
            "tree_in_order: parents[1] is 2; give an earlier node, or -1 for a root");
  EXPECT_EQ(refusal([] { masks::tree_in_order(Numbers{0}, 3); }),
            "tree_in_order: parents[0] is 0; give an earlier node, or -1 for a root");
  EXPECT_EQ(refusal([] { masks::tree_in_order(Numbers{-2}, 3); }),
            "tree_in_order: parents[0] is -2; give an earlier node, or -1 for a root");
}

TEST(TreeInOrder, RefusesSizesThatDoNotHoldTheTree) {
  EXPECT_EQ(refusal([] {
              masks::tree_in_order(Numbers{-1, 0, 0}, 2);
            }),
            "tree_in_order: 3 nodes but tokens is 2; give tokens >= 3");
  EXPECT_EQ(refusal([] { masks::tree_in_order(Numbers{-1}, 1, -1); }),
            "tree_in_order: prefix is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  EXPECT_EQ(refusal([] { masks::tree_in_order(Numbers{-1}, 2147483647, 2147483647); }),
            "tree_in_order: columns is 4,294,967,294; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

/// The path of every node from its root, as candidate numbers, level by level in lexicographic order.
std::vector<Numbers> medusa_paths(const Numbers& candidates) {
  std::vector<Numbers> paths;
  std::vector<Numbers> level = {{}};
  for (const std::int64_t count : candidates) {
    std::vector<Numbers> next;
    for (const Numbers& path : level) {
      for (std::int64_t c = 0; c < count; ++c) {
        next.push_back(path);
        next.back().push_back(c);
      }
    }
    paths.insert(paths.end(), next.begin(), next.end());
    level = next;
  }
  return paths;
}

bool starts_with(const Numbers& path, const Numbers& beginning) {
  return beginning.size() <= path.size() && std::equal(beginning.begin(), beginning.end(), path.begin());
}

TEST(MedusaTree, SeesThePathsThatBeginItsOwn) {
  for (const Numbers& candidates :
       {Numbers{}, Numbers{5}, Numbers{3, 3, 3, 3}, Numbers{4, 1, 2, 3}, Numbers{1, 1, 9}}) {
    const std::vector<Numbers> paths = medusa_paths(candidates);
    const std::int64_t nodes = std::ssize(paths);
    const std::int64_t prefix = 3;
    expect_visible(masks::medusa_tree(candidates, nodes + 8, prefix), [&](auto i, auto j) {
      return i < nodes && (j < prefix || (j - prefix < nodes && starts_with(paths[static_cast<std::size_t>(i)],
                                                                            paths[static_cast<std::size_t>(j - 3)])));
    });
  }
}

TEST(MedusaTree, HasAsManyNodesAsTheHeadsGive) {
  EXPECT_EQ(masks::medusa_parents(Numbers{4, 4, 4, 4}).size(), 340U);
  EXPECT_EQ(masks::medusa_parents(Numbers(8, 3)).size(), 9840U);
  EXPECT_EQ(masks::medusa_parents(Numbers{2, 2}), (Numbers{-1, -1, 0, 0, 1, 1}));
}

TEST(MedusaTree, ShowsOnlySelfAndParentWhenAsked) {
  const std::vector<Numbers> paths = medusa_paths(Numbers{3, 2, 4});
  expect_visible(masks::medusa_tree(Numbers{3, 2, 4}, std::ssize(paths), 0, TreeSight::parent), [&](auto i, auto j) {
    const Numbers& row = paths[static_cast<std::size_t>(i)];
    const Numbers& column = paths[static_cast<std::size_t>(j)];
    return starts_with(row, column) && row.size() - column.size() <= 1;
  });
}

TEST(MedusaTree, RefusesAHeadWithoutCandidatesAndTooManyNodes) {
  EXPECT_EQ(refusal([] {
              masks::medusa_tree(Numbers{3, 0}, 9);
            }),
            "medusa_parents: candidates[1] is 0; give the children of a node (>= 1)");
  EXPECT_EQ(refusal([] {
              masks::medusa_tree(Numbers{3, 3}, 11);
            }),
            "medusa_tree: 12 nodes but tokens is 11; give tokens >= 12");
  EXPECT_EQ(refusal([] {
              masks::medusa_parents(Numbers{10, 2147483647});
            }),
            "medusa_parents: the number of nodes up to candidates[1] is 21,474,836,480; give a size from 0 to "
            "2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
