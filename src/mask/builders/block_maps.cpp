// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/checks.h"
#include "flashmask/block_map_builders.h"

namespace flashmask::block_maps {
namespace {

/// Rows and columns of blocks, also for a block size that BlockMap refuses.
struct BlockGrid {
  MaskShape shape;
  std::int64_t rows = 0, columns = 0;

  /// Returns the block of a row of blocks that lies on the bottom-right aligned diagonal.
  std::int64_t own(std::int64_t row) const { return row + columns - rows; }
};

BlockGrid grid_of(const std::string& builder, const MaskShape& shape, std::int64_t block) {
  check_shape(builder, shape);
  if (block < 1) refuse(builder + ": block is " + grouped(block) + "; give a multiple of 16, such as 64, 128 or 256");
  const auto blocks = [block](std::int64_t tokens) { return tokens / block + (tokens % block != 0 ? 1 : 0); };
  return {shape, blocks(shape.rows), blocks(shape.columns)};
}

void check_count(const std::string& builder, const std::string& argument, std::int64_t value, const char* meaning) {
  if (value < 0) refuse(builder + ": " + argument + " is " + grouped(value) + "; give " + meaning + " (>= 0)");
}

/// Calls choose(row of blocks, keep) for each row of blocks; `keep` is [columns of blocks] and starts as zeros.
template <class Choose>
BlockMap build(const BlockGrid& grid, std::int64_t block, const std::string& builder, const Choose& choose) {
  const auto& [shape, rows, columns] = grid;
  auto keep = zeros<std::uint8_t>(builder, element_count(builder, {shape.batch, shape.heads, rows, columns}));
  const std::int64_t lists = keep.empty() ? 0 : shape.batch * shape.heads * rows;
  for (std::int64_t list = 0; list < lists; ++list) {
    choose(list, std::span(keep).subspan(static_cast<std::size_t>(list * columns), static_cast<std::size_t>(columns)));
  }
  return {shape, block, keep};
}

/// Keeps a block if keeps(the row's own block, block) says so, in every batch entry and head alike.
template <class Keeps>
BlockMap build_everywhere(const BlockGrid& grid, std::int64_t block, const std::string& builder, const Keeps& keeps) {
  return build(grid, block, builder, [&](std::int64_t list, std::span<std::uint8_t> keep) {
    const std::int64_t own = grid.own(list % grid.rows);
    for (std::int64_t j = 0; j < grid.columns; ++j) keep[static_cast<std::size_t>(j)] = keeps(own, j) ? 1 : 0;
  });
}

void check_scores(const BlockGrid& grid, const std::string& builder, BlockScores scores) {
  const std::size_t expected = element_count(builder, {grid.shape.batch, grid.shape.heads, grid.rows, grid.columns});
  if (scores.size() != expected) {
    refuse(builder + ": scores has " + counted(scores.size(), "value") +
           " but batch x heads x block rows x block columns is " + grouped(static_cast<std::int64_t>(expected)));
  }
  const auto wrong = std::find_if(scores.begin(), scores.end(), [](float score) { return std::isnan(score); });
  if (wrong != scores.end()) {
    refuse(builder + ": scores[" + std::to_string(wrong - scores.begin()) +
           "] is not a number; give a number, or -inf for a block that is never kept");
  }
}

}  // namespace

BlockMap butterfly(const MaskShape& shape, std::int64_t block, std::optional<std::int64_t> strides) {
  const BlockGrid grid = grid_of("butterfly", shape, block);
  if (strides) check_count("butterfly", "strides", *strides, "how many strides 1, 2, 4, ... to take");
  constexpr std::int64_t all = 62;  // more bits than any number of blocks has
  const auto limit = std::uint64_t{1} << std::min(strides.value_or(all), all);
  return build_everywhere(grid, block, "butterfly", [limit](std::int64_t own, std::int64_t j) {
    if (own < 0) return false;
    const std::uint64_t stride = static_cast<std::uint64_t>(own) ^ static_cast<std::uint64_t>(j);
    return stride < limit && (stride == 0 || std::has_single_bit(stride));
  });
}

BlockMap strided(const MaskShape& shape, std::int64_t block, std::int64_t stride) {
  const BlockGrid grid = grid_of("strided", shape, block);
  if (stride < 1) refuse("strided: stride is " + grouped(stride) + "; give a distance in blocks (>= 1)");
  return build_everywhere(grid, block, "strided",
                          [stride](std::int64_t own, std::int64_t j) { return (j - own) % stride == 0; });
}

BlockMap sliding(const MaskShape& shape, std::int64_t block, std::int64_t left, std::int64_t right) {
  const BlockGrid grid = grid_of("sliding", shape, block);
  check_count("sliding", "left", left, "the number of blocks on that side of a row's own");
  check_count("sliding", "right", right, "the number of blocks on that side of a row's own");
  return build_everywhere(grid, block, "sliding", [left, right](std::int64_t own, std::int64_t j) {
    return own - j <= left && j - own <= right;
  });
}

BlockMap random(const MaskShape& shape, std::int64_t block, std::int64_t kept, std::uint64_t seed) {
  const BlockGrid grid = grid_of("random", shape, block);
  if (kept < 0 || kept > grid.columns) {
    refuse("random: kept is " + grouped(kept) + "; give a number of blocks a row from 0 to the columns of blocks, " +
           grouped(grid.columns));
  }
  // No standard distribution: C++ fixes the numbers of the engine, but not those of distributions.
  std::mt19937_64 numbers(seed);
  // Selection sampling: block j is taken with probability wanted / left, which makes every choice equally likely.
  return build(grid, block, "random", [&](std::int64_t, std::span<std::uint8_t> keep) {
    auto wanted = static_cast<std::uint64_t>(kept);
    auto left = static_cast<std::uint64_t>(grid.columns);
    for (std::uint8_t& one : keep) {
      one = numbers() % left-- < wanted ? 1 : 0;
      wanted -= one;
    }
  });
}

BlockMap best(const MaskShape& shape, std::int64_t block, BlockScores scores, std::int64_t kept) {
  const BlockGrid grid = grid_of("best", shape, block);
  check_count("best", "kept", kept, "the number of blocks that a row keeps");
  check_scores(grid, "best", scores);
  std::vector<std::int64_t> order(static_cast<std::size_t>(grid.columns));
  const std::int64_t taken = std::min(kept, grid.columns);
  return build(grid, block, "best", [&](std::int64_t list, std::span<std::uint8_t> keep) {
    const float* row = scores.data() + list * grid.columns;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + taken, order.end(),
                      [row](std::int64_t a, std::int64_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    for (std::int64_t k = 0; k < taken; ++k) {
      const std::int64_t j = order[static_cast<std::size_t>(k)];
      keep[static_cast<std::size_t>(j)] = row[j] == -std::numeric_limits<float>::infinity() ? 0 : 1;
    }
  });
}

BlockMap at_least(const MaskShape& shape, std::int64_t block, BlockScores scores, float threshold) {
  const BlockGrid grid = grid_of("at_least", shape, block);
  if (std::isnan(threshold)) refuse("at_least: threshold is not a number; give the lowest score that is kept");
  check_scores(grid, "at_least", scores);
  return build(grid, block, "at_least", [&](std::int64_t list, std::span<std::uint8_t> keep) {
    const float* row = scores.data() + list * grid.columns;
    for (std::size_t j = 0; j < keep.size(); ++j) {
      keep[j] = row[j] >= threshold && row[j] != -std::numeric_limits<float>::infinity() ? 1 : 0;
    }
  });
}

}  // namespace flashmask::block_maps
