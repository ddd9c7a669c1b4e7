// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/language_standard.h"

namespace flashmask {

/// Extent of a mask. A batch of 1 is shared by every batch entry; heads is 1, Hkv or Hq.
struct MaskShape {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t rows = 0;     ///< query length Sq
  std::int64_t columns = 0;  ///< key length Sk

  friend bool operator==(const MaskShape&, const MaskShape&) = default;
};

/// The exact form that a mask was lowered to; also the predicate of a kernel that reads partial tiles of that form.
enum class MaskForm : std::uint8_t {
  intervals,  ///< at most two masked row ranges per column
  bits,       ///< one bit per score, in partial cells only
};

}  // namespace flashmask
