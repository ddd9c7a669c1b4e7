// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "flashmask/mask.h"
#include "mask/cell_words.h"

namespace flashmask {

/// Whether intervals alone describe the mask, without a block map.
inline bool is_plain_intervals(const LoweredMask& mask) {
  return mask.form() == MaskForm::intervals && mask.blocks() == nullptr;
}

/// Returns the bits of a mask of either form; copies nothing if the mask has bits already.
std::shared_ptr<const BitMask> to_bits(const LoweredMask& mask, Executor& executor);

/// Returns where the column values of one batch entry and mask head begin.
IntervalColumns interval_columns(const IntervalMask& mask, std::int64_t batch, std::int64_t head);

}  // namespace flashmask
