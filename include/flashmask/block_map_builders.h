// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "flashmask/block_map.h"
#include "flashmask/export.h"

/// Common block maps. `shape` counts scores and `block` is the side of a block, as for BlockMap. A "row" below is a row
/// of blocks. Its own block is aligned bottom-right, as causality is: row i's own block is i + block columns − block
/// rows. Every builder throws Status::invalid_argument on numbers that contradict each other.
namespace flashmask::block_maps {

/// Flat block butterfly (Pixelated Butterfly, Chen et al. 2021): a row keeps its own block and those whose number
/// differs from its own in exactly one of the lowest `strides` bits; nullopt: in any one bit. Where the number of
/// blocks per side is a power of two, each row keeps strides + 1 blocks.
FLASHMASK_API BlockMap butterfly(const MaskShape& shape, std::int64_t block, std::optional<std::int64_t> strides = {});

/// A row keeps its own block and every block a multiple of `stride` blocks before or after it. `stride` >= 1.
FLASHMASK_API BlockMap strided(const MaskShape& shape, std::int64_t block, std::int64_t stride);

/// A row keeps its own block and `left` and `right` neighbours.
FLASHMASK_API BlockMap sliding(const MaskShape& shape, std::int64_t block, std::int64_t left, std::int64_t right);

/// Every row of blocks of every batch entry and mask head keeps `kept` different blocks, each choice as likely as any
/// other. A seed gives the same map on every machine.
FLASHMASK_API BlockMap random(const MaskShape& shape, std::int64_t block, std::int64_t kept, std::uint64_t seed);

/// Scores of blocks [batch, heads, block rows, block columns], such as estimated attention; −inf is never kept.
using BlockScores = std::span<const float>;

/// A row keeps its `kept` blocks of the highest scores, the earlier ones among equals.
FLASHMASK_API BlockMap best(const MaskShape& shape, std::int64_t block, BlockScores scores, std::int64_t kept);

/// A row keeps the blocks that score at least `threshold`.
FLASHMASK_API BlockMap at_least(const MaskShape& shape, std::int64_t block, BlockScores scores, float threshold);

}  // namespace flashmask::block_maps
