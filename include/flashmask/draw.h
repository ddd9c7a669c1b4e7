// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"

namespace flashmask {

struct DrawOptions {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t width = 64;  ///< at most this many characters across and down; larger masks: one per block of scores
  bool colour = false;      ///< ANSI colours
};

/// Draws one mask head with row 0 on top. Small masks: one character per score, '#' visible, '.' masked. Larger ones:
/// one character per block, '#' all visible, '+' some, '.' none.
FLASHMASK_API std::string draw(const Mask& mask, const DrawOptions& options = {});

}  // namespace flashmask
