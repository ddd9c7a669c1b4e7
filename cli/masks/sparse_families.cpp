// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/sparse_families.h"

#include <algorithm>

#include "cli/base/memory_limit.h"
#include "cli/masks/given_values.h"
#include "cli/masks/mask_defaults.h"
#include "flashmask/builders.h"

namespace flashmask::cli {
namespace {

/// Checks memory for masks whose partial cells cover much of the scores: one bit per score, held twice during building.
void check_bits(const MaskArguments& given) {
  const auto rows = static_cast<double>(tokens_of(given));
  const auto columns = static_cast<double>(columns_of(given));
  check_memory(rows * columns / 4 * static_cast<double>(heads_of(given)), "building the mask", "give fewer --tokens");
}

/// Checks sizes that do not come from --tokens and --columns, which are checked for all families.
void check_tokens(std::int64_t tokens, const std::string& remedy) {
  check_memory(64 * static_cast<double>(tokens), "holding the mask", remedy);
}

/// The number of tokens of a grid, capped where no mask can reach.
std::int64_t product(const Numbers& grid) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  std::int64_t tokens = 1;
  for (const std::int64_t length : grid) tokens = std::min(tokens * std::clamp<std::int64_t>(length, 0, most), most);
  return tokens;
}

Mask build_dilated_window(const MaskArguments& given) {
  return masks::dilated_window(tokens_of(given), columns_of(given), given.left.value_or(4), given.right.value_or(4),
                               given.dilation.value_or(2));
}

Mask build_global_tokens(const MaskArguments& given) {
  const std::int64_t tokens = tokens_of(given);
  const Numbers positions =
      given.positions ? parse_numbers(*given.positions, "positions") : Numbers{0, tokens / 3, 3 * tokens / 4};
  const std::int64_t side = default_window(tokens) - 1;
  return masks::global_tokens(tokens, positions, given.left.value_or(side), given.right.value_or(side));
}

Mask build_big_bird(const MaskArguments& given) {
  const std::int64_t tokens = tokens_of(given);
  masks::BigBird pattern;
  pattern.block = given.block.value_or(std::clamp<std::int64_t>(tokens / 16, 1, pattern.block));
  pattern.window_blocks = given.window_blocks.value_or(pattern.window_blocks);
  pattern.global_blocks = given.global_blocks.value_or(pattern.global_blocks);
  pattern.random_blocks = given.random_blocks.value_or(pattern.random_blocks);
  pattern.heads = heads_of(given);
  pattern.seed = seed_of(given);
  return masks::big_bird(tokens, pattern);
}

Mask build_neighbourhood(const MaskArguments& given, std::size_t number) {
  const auto expected = std::to_string(number) + " numbers, one an axis";
  const Numbers grid = given.grid ? parse_numbers(*given.grid, "grid")
                                  : default_grid(tokens_of(given), static_cast<std::int64_t>(number));
  if (grid.size() != number) refuse_option("grid", *given.grid, expected);
  const std::int64_t tokens = product(grid);
  if (given.tokens && *given.tokens != tokens) {
    refuse_option("grid", *given.grid, "lengths that multiply to --tokens, which is " + std::to_string(*given.tokens));
  }
  check_tokens(tokens, "give a smaller --grid");
  const std::int64_t dilation = given.dilation.value_or(1);
  std::vector<masks::NeighbourhoodAxis> axes;
  for (const std::int64_t length : grid) {
    const std::int64_t kernel = std::clamp<std::int64_t>(length / std::max<std::int64_t>(dilation, 1), 1, 3);
    axes.push_back({length, kernel, dilation});
  }
  if (given.kernel_size) {
    const Numbers kernels = parse_numbers(*given.kernel_size, "kernel-size");
    if (kernels.size() != number) refuse_option("kernel-size", *given.kernel_size, expected);
    for (std::size_t a = 0; a < number; ++a) axes[a].kernel = kernels[a];
  }
  return masks::neighbourhood(axes);
}

Mask build_neighbourhood_2d(const MaskArguments& given) { return build_neighbourhood(given, 2); }
Mask build_neighbourhood_3d(const MaskArguments& given) { return build_neighbourhood(given, 3); }

Mask build_strided_factorised(const MaskArguments& given) {
  check_bits(given);
  return masks::strided_factorised(tokens_of(given), given.stride.value_or(default_stride(tokens_of(given))));
}

Mask build_fixed_factorised(const MaskArguments& given) {
  const std::int64_t stride = given.stride.value_or(default_stride(tokens_of(given)));
  return masks::fixed_factorised(tokens_of(given), stride, given.summary.value_or((stride + 3) / 4));
}

Mask build_scfa_hash_sparse(const MaskArguments& given) {
  check_bits(given);
  const auto buckets = [&](std::uint64_t seed) {
    return buckets_in_order(tokens_of(given), heads_of(given), buckets_of(given), seed);
  };
  return masks::scfa_hash_sparse(buckets(seed_of(given)), buckets(seed_of(given) + 1), heads_of(given));
}

Mask build_scfa_qk_sparse(const MaskArguments& given) {
  check_bits(given);
  const auto kept = [&](std::uint64_t seed) { return random_half(tokens_of(given), heads_of(given), seed); };
  return masks::scfa_qk_sparse(kept(seed_of(given)), kept(seed_of(given) + 1), heads_of(given));
}

Mask build_drop_queries(const MaskArguments& given) {
  check_bits(given);
  const Numbers dropped =
      given.dropped ? parse_numbers(*given.dropped, "dropped") : random_quarter(tokens_of(given), seed_of(given));
  return masks::drop_queries(masks::causal(tokens_of(given), columns_of(given)), dropped);
}

masks::TreeSight sight_of(const MaskArguments& given) {
  const std::string sight = given.sight.value_or("ancestors");
  if (sight == "parent") return masks::TreeSight::parent;
  if (sight != "ancestors") refuse_option("sight", sight, "ancestors or parent");
  return masks::TreeSight::ancestors;
}

/// The columns before a tree.
std::int64_t prefix_of(const MaskArguments& given) {
  const std::int64_t prefix = given.prefix.value_or(0);
  check_tokens(prefix, "give a smaller --prefix");
  return prefix;
}

Mask build_tree_in_order(const MaskArguments& given) {
  const Numbers parents = given.parents ? parse_numbers(*given.parents, "parents") : default_parents(tokens_of(given));
  return masks::tree_in_order(parents, tokens_or(given, std::ssize(parents)), prefix_of(given), sight_of(given));
}

Mask build_medusa_tree(const MaskArguments& given) {
  const Numbers candidates =
      given.candidates ? parse_numbers(*given.candidates, "candidates") : default_candidates(tokens_of(given));
  const std::int64_t nodes = std::ssize(masks::medusa_parents(candidates));
  const std::int64_t tokens = tokens_or(given, given.candidates ? nodes : kDefaultTokens);
  return masks::medusa_tree(candidates, tokens, prefix_of(given), sight_of(given));
}

Mask build_graph(const MaskArguments& given) {
  std::vector<VisiblePair> edges;
  if (given.edges) {
    for (const auto& [from, to] : parse_pairs(*given.edges, "edges", "pairs of nodes, such as 0:1,1:4")) {
      edges.push_back({from, to});
    }
  } else {
    edges = random_ring(tokens_of(given), seed_of(given));
  }
  return masks::graph(tokens_of(given), edges, {.symmetric = true, .self_loops = true});
}

// clang-format off: one line a family
const std::vector<MaskFamily> kSparseFamilies = {
    {"dilated_window",
     "every --dilation-th column beside self",
     {"columns", "left", "right", "dilation"},
     build_dilated_window},
    {"global_tokens", "a window, and --positions that all see", {"positions", "left", "right"}, build_global_tokens},
    {"big_bird",
     "window, global and random blocks",
     {"block", "window-blocks", "global-blocks", "random-blocks", "heads", "seed"},
     build_big_bird},
    {"neighbourhood_2d", "the nearest tokens of a --grid", {"grid", "kernel-size", "dilation"}, build_neighbourhood_2d},
    {"neighbourhood_3d",
     "the same of a grid of three axes",
     {"grid", "kernel-size", "dilation"},
     build_neighbourhood_3d},
    {"strided_factorised", "causal, the last --stride and every such", {"stride"}, build_strided_factorised},
    {"fixed_factorised", "causal, own block and ends of earlier ones", {"stride", "summary"}, build_fixed_factorised},
    {"scfa_hash_sparse", "random --buckets, tokens in order", {"buckets", "heads", "seed"}, build_scfa_hash_sparse},
    {"scfa_qk_sparse", "causal, random queries and keys dropped", {"heads", "seed"}, build_scfa_qk_sparse},
    {"drop_queries", "causal, --dropped rows see nothing", {"columns", "dropped", "seed"}, build_drop_queries},
    {"tree_in_order", "a tree in the order given, any", {"parents", "prefix", "sight"}, build_tree_in_order},
    {"medusa_tree", "a tree of --candidates, breadth first", {"candidates", "prefix", "sight"}, build_medusa_tree},
    {"graph", "both ends of --edges, and self", {"edges", "seed"}, build_graph},
};
// clang-format on

}  // namespace

const std::vector<MaskFamily>& sparse_families() { return kSparseFamilies; }

}  // namespace flashmask::cli
