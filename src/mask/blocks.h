// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/block_map.h"

namespace flashmask {

/// Blocks of a multiple of this many tokens hold whole tiles of every kernel, so their map is kept beside intervals.
constexpr std::int64_t kWholeTiles = 128;

/// Masks the scores outside the kept blocks. Batch and heads of 1 are broadcast on either side.
BitMask keep_blocks(const BitMask& mask, const BlockMap& map, Executor& executor);

}  // namespace flashmask
