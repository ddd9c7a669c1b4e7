// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mask/builders/visible_columns.h"

namespace flashmask::masks {
namespace {

/// Throws unless every parent comes before its children and every node has a row.
void check_parents(const std::string& builder, std::span<const std::int64_t> parents, std::int64_t tokens) {
  if (std::ssize(parents) > tokens) {
    refuse(builder + ": " + counted(parents.size(), "node") + " but tokens is " + grouped(tokens) +
           "; give tokens >= " + std::to_string(parents.size()));
  }
  for (std::size_t k = 0; k < parents.size(); ++k) {
    if (parents[k] >= -1 && parents[k] < static_cast<std::int64_t>(k)) continue;
    refuse(builder + ": parents[" + std::to_string(k) + "] is " + grouped(parents[k]) +
           "; give an earlier node, or -1 for a root");
  }
}

/// Returns, for each node, the first of the consecutive nodes up to itself that it sees as one chain.
std::vector<std::int64_t> chain_begins(std::span<const std::int64_t> parents, TreeSight sight) {
  std::vector<std::int64_t> begins(parents.size());
  for (std::size_t k = 0; k < parents.size(); ++k) {
    const bool follows = sight == TreeSight::ancestors && k > 0 && parents[k] == static_cast<std::int64_t>(k) - 1;
    begins[k] = follows ? begins[k - 1] : static_cast<std::int64_t>(k);
  }
  return begins;
}

Mask tree_mask(const std::string& builder, std::span<const std::int64_t> parents, std::int64_t tokens,
               std::int64_t prefix, TreeSight sight) {
  check_size(builder, "tokens", tokens);
  check_size(builder, "prefix", prefix);
  const MaskShape shape = shape_of(builder, 1, tokens, prefix + tokens);
  check_parents(builder, parents, tokens);
  const std::vector<std::int64_t> begins = chain_begins(parents, sight);
  const std::int64_t most_chains = sight == TreeSight::parent ? 2 : std::ssize(parents);
  const auto visible = [&](std::int64_t, std::int64_t, std::int64_t row, std::vector<Span>& out) {
    out.clear();
    if (row >= std::ssize(parents)) return;
    out.push_back({0, prefix});
    std::int64_t node = row;
    for (std::int64_t chain = 0; chain < most_chains && node >= 0; ++chain) {
      const auto begin = static_cast<std::size_t>(begins[static_cast<std::size_t>(node)]);
      out.push_back({prefix + static_cast<std::int64_t>(begin), prefix + node + 1});
      node = parents[begin];
    }
  };
  return {from_visible_columns(shape, visible), builder + "(" + counted(parents.size(), "node") + ")"};
}

}  // namespace

Mask tree_in_order(Elements<std::int64_t> parents, std::int64_t tokens, std::int64_t prefix, TreeSight sight) {
  return tree_mask("tree_in_order", parents, tokens, prefix, sight);
}

std::vector<std::int64_t> medusa_parents(Elements<std::int64_t> candidates) {
  std::vector<std::int64_t> parents;
  std::int64_t level_begin = -1;
  std::int64_t level_size = 1;  // node -1, above the roots and not in the mask
  for (std::size_t k = 0; k < candidates.size(); ++k) {
    const std::string argument = "candidates[" + std::to_string(k) + "]";
    check_at_least("medusa_parents", argument, candidates[k], 1, "the children of a node");
    check_size("medusa_parents", argument, candidates[k]);
    const auto begin = std::ssize(parents);
    const std::int64_t size = level_size * candidates[k];
    check_size("medusa_parents", "the number of nodes up to " + argument, begin + size);
    for (std::int64_t i = 0; i < size; ++i) parents.push_back(level_begin + i / candidates[k]);
    level_begin = begin;
    level_size = size;
  }
  return parents;
}

Mask medusa_tree(Elements<std::int64_t> candidates, std::int64_t tokens, std::int64_t prefix, TreeSight sight) {
  return tree_mask("medusa_tree", medusa_parents(candidates), tokens, prefix, sight);
}

}  // namespace flashmask::masks
