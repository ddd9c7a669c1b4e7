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
  std::int64_t width = 64;  ///< characters at most; larger masks are drawn a block of scores a character
  bool colour = false;      ///< ANSI colours
};

/// Row 0 on top. Small masks: '#' visible, '.' masked, one character a score. Larger ones: one character a block,
/// '#' all visible, '+' some, '.' none.
FLASHMASK_API std::string draw(const Mask& mask, const DrawOptions& options = {});

}  // namespace flashmask
