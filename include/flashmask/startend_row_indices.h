// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"

namespace flashmask {

/// The interchange format of existing users: int32 [batch, heads, columns, n].
///
/// | causal | n | vectors            | masked rows of a column                       |
/// |--------|---|--------------------|-----------------------------------------------|
/// | true   | 1 | LTS                | r >= LTS, and the causal part r < j + Sq - Sk |
/// | true   | 2 | LTS, LTE           | LTS <= r < LTE, and the causal part           |
/// | false  | 2 | LTS, UTE           | r >= LTS or r < UTE                           |
/// | false  | 4 | LTS, LTE, UTS, UTE | LTS <= r < LTE or UTS <= r < UTE              |
struct StartEndRowIndices {
  std::vector<std::int32_t> values;
  MaskShape shape;
  int vectors = 1;  ///< n
  bool causal = true;
};

/// Values outside [0, rows] are clipped; ranges may overlap and come in any order. Throws on any other n or size.
FLASHMASK_API Mask from_startend_row_indices(std::span<const std::int32_t> values, const MaskShape& shape, int vectors,
                                             bool causal);

/// Returns the first of these encodings that fits the mask: causal n = 1, causal n = 2, n = 2, n = 4.
FLASHMASK_API StartEndRowIndices to_startend_row_indices(const IntervalMask& mask);

}  // namespace flashmask
