// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>

#include "mask/builders/visible_columns.h"

namespace flashmask::masks {
namespace {

/// The blocks that a row of blocks always sees, and those that it may draw at random.
struct Blocks {
  std::int64_t number, globals, before_self, after_self;

  Blocks(std::int64_t tokens, const BigBird& pattern)
      : number((tokens + pattern.block - 1) / pattern.block),
        globals(std::min(pattern.global_blocks, number)),
        before_self(std::min(pattern.window_blocks, number)),
        after_self(before_self) {}

  Span window(std::int64_t row) const {
    return {std::max(row - before_self, globals), std::min(row + after_self + 1, number)};
  }
  /// Blocks that are neither global nor in the window.
  std::int64_t others(std::int64_t row) const { return number - globals - (window(row).end - window(row).begin); }
  std::int64_t other(std::int64_t row, std::int64_t k) const {
    const Span seen = window(row);
    return globals + k < seen.begin ? globals + k : globals + k + seen.end - seen.begin;
  }
};

/// Draws `count` different numbers below `limit`, ascending (Floyd's sampling). Uses no standard distribution: C++
/// fixes the numbers of the engine, but not those of distributions.
std::vector<std::int64_t> sample(std::mt19937_64& random, std::int64_t count, std::int64_t limit) {
  std::vector<std::int64_t> drawn;
  for (std::int64_t k = limit - std::min(count, limit); k < limit; ++k) {
    const auto number = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(k + 1));
    const auto place = std::lower_bound(drawn.begin(), drawn.end(), number);
    if (place != drawn.end() && *place == number) {
      drawn.push_back(k);  // greater than all before
    } else {
      drawn.insert(place, number);
    }
  }
  return drawn;
}

/// Draws the random blocks of every row of blocks: [heads, rows of blocks].
std::vector<std::vector<std::int64_t>> draw_blocks(const Blocks& blocks, const BigBird& pattern) {
  std::mt19937_64 random(pattern.seed);
  std::vector<std::vector<std::int64_t>> drawn;
  for (std::int64_t i = 0; i < pattern.heads * blocks.number; ++i) {
    const std::int64_t row = i % blocks.number;
    drawn.push_back(sample(random, pattern.random_blocks, row < blocks.globals ? 0 : blocks.others(row)));
    for (std::int64_t& block : drawn.back()) block = blocks.other(row, block);
  }
  return drawn;
}

void check(const BigBird& pattern) {
  check_at_least("big_bird", "block", pattern.block, 1, "the tokens of a block");
  check_at_least("big_bird", "window_blocks", pattern.window_blocks, 0, "the blocks on either side of a block");
  check_at_least("big_bird", "global_blocks", pattern.global_blocks, 0, "how many of the first blocks are global");
  check_at_least("big_bird", "random_blocks", pattern.random_blocks, 0, "the random blocks of a row of blocks");
  check_at_least("big_bird", "heads", pattern.heads, 1, "the number of mask heads");
  check_size("big_bird", "heads", pattern.heads);
}

}  // namespace

Mask big_bird(std::int64_t tokens, const BigBird& pattern) {
  MaskShape shape = shape_of("big_bird", tokens);
  check(pattern);
  shape.heads = pattern.heads;
  BigBird clipped = pattern;
  clipped.block = std::min(pattern.block, std::max<std::int64_t>(tokens, 1));
  const Blocks blocks(tokens, clipped);
  const auto random_blocks = draw_blocks(blocks, clipped);
  const auto visible = [&, size = clipped.block](std::int64_t, std::int64_t head, std::int64_t row,
                                                 std::vector<Span>& out) {
    const std::int64_t block = row / size;
    out.assign(1, {0, tokens});
    if (block < blocks.globals) return;
    out[0].end = blocks.globals * size;
    const Span window = blocks.window(block);
    out.push_back({window.begin * size, window.end * size});
    for (const std::int64_t other : random_blocks[static_cast<std::size_t>(head * blocks.number + block)]) {
      out.push_back({other * size, (other + 1) * size});
    }
  };
  return {from_visible_columns(shape, visible),
          "big_bird(block " + grouped(pattern.block) + ", window " + grouped(pattern.window_blocks) + ", global " +
              grouped(pattern.global_blocks) + ", random " + grouped(pattern.random_blocks) + ")"};
}

}  // namespace flashmask::masks
