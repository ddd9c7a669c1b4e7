// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "flashmask/mask.h"
#include "mask/cell_words.h"

namespace flashmask {

/// Whether intervals alone say what the mask shows.
inline bool is_plain_intervals(const LoweredMask& mask) {
  return mask.form() == MaskForm::intervals && mask.blocks() == nullptr;
}

/// The bits of a mask of either form; those of a mask of bits are not copied.
std::shared_ptr<const BitMask> to_bits(const LoweredMask& mask, Executor& executor);

/// Where one mask head's column values begin.
IntervalColumns interval_columns(const IntervalMask& mask, std::int64_t batch, std::int64_t head);

}  // namespace flashmask
