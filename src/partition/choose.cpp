#include <algorithm>
#include <string>

#include "base/checks.h"
#include "partition/checks.h"
#include "partition/simple.h"

namespace flashmask {
namespace {

/// How many ranks there are on all levels.
std::int32_t product(std::span<const std::int32_t> sizes) {
  std::int64_t ranks = sizes.empty() ? 0 : 1;
  for (const std::int32_t size : sizes) {
    if (size < 1) refuse("partition: a level has " + grouped(size) + " ranks; give at least one");
    ranks *= size;
    check_size("partition", "ranks", ranks);
  }
  if (ranks < 1) refuse("partition: there are no ranks; give how many there are, or a number a level");
  return static_cast<std::int32_t>(ranks);
}

/// Throws unless all masks have one number of rows and columns; returns it.
std::int64_t common_tokens(std::span<const WeightedMask> masks) {
  if (masks.empty()) refuse("partition: there is no mask; give one at least");
  const std::int64_t tokens = masks.front().mask->shape().rows;
  for (const auto& [mask, weight] : masks) {
    const MaskShape& shape = mask->shape();
    if (shape.rows != shape.columns)
      refuse("partition: a mask is " + grouped(shape.rows) + " x " + grouped(shape.columns) +
             "; give masks with as many rows as columns");
    if (shape.rows != tokens)
      refuse("partition: one mask has " + grouped(tokens) + " rows and another " + grouped(shape.rows) +
             "; give masks of one sequence");
    if (weight < 1) refuse("partition: the weight of a mask is " + grouped(weight) + "; give at least 1");
  }
  return tokens;
}

}  // namespace

Partition partition(std::span<const WeightedMask> masks, std::span<const std::int32_t> sizes,
                    const PartitionOptions& options, Executor&) {
  check_options(options);
  const std::int32_t ranks = product(sizes);
  const std::int64_t tokens = common_tokens(masks);
  const std::int64_t tiles = (tokens + options.tile - 1) / options.tile;
  if (options.division == Division::contiguous)
    return of_owners(contiguous_owners(tiles, ranks), tokens, ranks, options.tile, "contiguous");
  return of_owners(zigzag_owners(tiles, ranks), tokens, ranks, options.tile, "zig-zag");
}

Partition partition(const Mask& mask, std::int32_t ranks, const PartitionOptions& options, Executor& executor) {
  const WeightedMask one{&mask, 1};
  return partition({&one, 1}, {&ranks, 1}, options, executor);
}

}  // namespace flashmask
