#pragma once

#include "flashmask/block_map.h"

namespace flashmask {

/// The scores of a BitMask inside the kept blocks. Batch and heads of 1 are broadcast on either side.
BitMask keep_blocks(const BitMask& mask, const BlockMap& map, Executor& executor);

}  // namespace flashmask
