// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"

namespace flashmask {

/// A mask by what its rows see, as NVIDIA's cudnn.flex_attention takes it (its `mask_func`): int32 [heads, ends, batch
/// × rows], an odd number of ends per row. Row r sees the columns [0, e₀) ∪ [e₁, e₂) ∪ [e₃, e₄) and so on.
struct RowRanges {
  std::vector<std::int32_t> values;
  MaskShape shape;
  int ends = 1;  ///< per row

  friend bool operator==(const RowRanges&, const RowRanges&) = default;
};

/// Returns the fewest ends that express every row; they ascend, and a row that needs fewer repeats its last one. Throws
/// Status::unsupported, naming the first row that needs more than `most_ends`.
FLASHMASK_API RowRanges to_row_ranges(const Mask& mask, int most_ends = 63);

/// Values outside [0, columns] are clipped; ranges may be empty, overlap and come in any order. Throws
/// Status::invalid_argument for an even number of ends and for another number of values than the shape says.
FLASHMASK_API Mask from_row_ranges(std::span<const std::int32_t> values, const MaskShape& shape, int ends);

}  // namespace flashmask
