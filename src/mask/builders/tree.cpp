// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "mask/builders/packing.h"

namespace flashmask::masks {
namespace {

using Parents = Elements<std::int64_t>;

void check_parents(Parents parents, Lengths lengths) {
  if (parents.size() != lengths.size()) {
    refuse("tree: " + counted(parents.size(), "parent") + " and " + counted(lengths.size(), "length") +
           "; give both of every node");
  }
  const auto nodes = static_cast<std::int64_t>(parents.size());
  for (std::size_t k = 0; k < parents.size(); ++k) {
    if (parents[k] < -1 || parents[k] >= nodes) {
      refuse("tree: parents[" + std::to_string(k) + "] is " + grouped(parents[k]) +
             "; give the index of a node, below " + grouped(nodes) + ", or -1 for a root");
    }
  }
}

/// Nodes grouped by parent (roots first); each group lists its nodes from the last given to the first.
struct Children {
  std::vector<std::size_t> offsets, nodes;

  explicit Children(Parents parents) : offsets(parents.size() + 2), nodes(parents.size()) {
    for (const std::int64_t parent : parents) ++offsets[static_cast<std::size_t>(parent + 1)];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    for (std::size_t k = 0; k < parents.size(); ++k) nodes[--offsets[static_cast<std::size_t>(parents[k] + 1)]] = k;
  }

  std::span<const std::size_t> of(std::int64_t parent) const {
    const auto group = static_cast<std::size_t>(parent + 1);
    return std::span(nodes).subspan(offsets[group], offsets[group + 1] - offsets[group]);
  }
};

/// Orders the nodes depth first: parents before children, siblings in the given order, each subtree contiguous.
std::vector<std::size_t> depth_first(Parents parents) {
  const Children children(parents);
  const auto roots = children.of(-1);
  std::vector<std::size_t> pending(roots.begin(), roots.end()), sequence;
  std::vector<bool> placed(parents.size());
  while (!pending.empty()) {
    const std::size_t node = pending.back();
    pending.pop_back();
    placed[node] = true;
    sequence.push_back(node);
    const auto below = children.of(static_cast<std::int64_t>(node));
    pending.insert(pending.end(), below.begin(), below.end());
  }
  if (sequence.size() < parents.size()) {
    const auto lost = std::find(placed.begin(), placed.end(), false) - placed.begin();
    refuse("tree: the ancestors of node " + std::to_string(lost) +
           " form a cycle; give every tree a root, whose parent is -1");
  }
  return sequence;
}

[[noreturn]] void refuse_order(Parents parents, std::size_t node, const std::string& reason) {
  refuse("tree: parents[" + std::to_string(node) + "] is " + std::to_string(parents[node]) + reason +
         " or use TreeOrder::depth_first");
}

/// Returns the given order; throws unless it is depth-first already.
std::vector<std::size_t> as_given(Parents parents) {
  std::vector<std::int64_t> ancestors{-1};  // path from -1, above the roots, to the previous node
  for (std::size_t k = 0; k < parents.size(); ++k) {
    const auto node = static_cast<std::int64_t>(k);
    if (parents[k] >= node) refuse_order(parents, k, ", not an earlier node; list parents first");
    while (!ancestors.empty() && ancestors.back() != parents[k]) ancestors.pop_back();
    if (ancestors.empty()) {
      refuse_order(parents, k, " but another subtree lies between the two; keep each subtree together");
    }
    ancestors.push_back(node);
  }
  std::vector<std::size_t> sequence(parents.size());
  std::iota(sequence.begin(), sequence.end(), std::size_t{0});
  return sequence;
}

std::vector<std::int64_t> place(const std::vector<std::size_t>& sequence, Lengths lengths) {
  std::vector<std::int64_t> positions(sequence.size());
  std::int64_t next = 0;
  for (const std::size_t node : sequence) {
    positions[node] = next;
    next += lengths[node];
  }
  return positions;
}

/// Returns one past the last token of each node's subtree.
std::vector<std::int64_t> subtree_ends(const std::vector<std::size_t>& sequence, Parents parents, Lengths lengths,
                                       const std::vector<std::int64_t>& positions) {
  std::vector<std::int64_t> ends(sequence.size());
  for (std::size_t k = sequence.size(); k-- > 0;) {  // children come after their parent
    const std::size_t node = sequence[k];
    ends[node] = std::max(ends[node], positions[node] + lengths[node]);
    if (parents[node] < 0) continue;
    std::int64_t& parent_end = ends[static_cast<std::size_t>(parents[node])];
    parent_end = std::max(parent_end, ends[node]);
  }
  return ends;
}

}  // namespace

TreeMask tree(Parents parents, Lengths lengths, std::int64_t tokens, TreeOrder order) {
  IntervalMask mask = all_visible("tree", tokens);
  check_parents(parents, lengths);
  const std::int64_t used = check_fit("tree", "lengths", lengths, tokens);
  const std::vector<std::size_t> sequence = order == TreeOrder::as_given ? as_given(parents) : depth_first(parents);
  std::vector<std::int64_t> positions = place(sequence, lengths);
  const std::vector<std::int64_t> ends = subtree_ends(sequence, parents, lengths, positions);
  for (std::size_t node = 0; node < lengths.size(); ++node) {
    const std::int64_t end = positions[node] + lengths[node];
    for (std::int64_t j = positions[node]; j < end; ++j) show_column(mask, j, {j, ends[node]});
  }
  hide_columns_from(mask, used);
  return {Mask(std::move(mask), "tree(" + counted(parents.size(), "node") + ")"), std::move(positions)};
}

}  // namespace flashmask::masks
