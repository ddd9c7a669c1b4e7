// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// What a mask is and what it costs. Sums run over batch entries and mask heads.
struct Explanation {
  MaskShape shape;
  std::string description;
  MaskForm form = MaskForm::intervals;
  std::string why;  ///< why that form
  TileShape tile;
  bool invariant = false;  ///< whether tiles begin at free cuts, as under PlanOptions::invariant
  std::int64_t visible_pairs = 0;
  double density = 0;  ///< visible pairs ÷ all pairs
  TileCounts tiles;
  double waste = 0;  ///< scores in active tiles ÷ visible pairs
  std::int64_t empty_rows = 0;
  std::vector<std::int64_t> first_empty_rows;  ///< at most eight, of batch entry 0 and mask head 0
  std::size_t mask_bytes = 0;
  std::int64_t partial_cells = 0;  ///< in a mask of bits: cells of 64 × 64 scores that store their bits, 512 bytes each
  std::size_t schedule_bytes = 0;
  std::size_t dense_bytes = 0;  ///< one byte per score: the boolean matrix the mask replaces
};

/// `invariant`: tiles also begin at every free cut, as under PlanOptions::invariant; sides then divide 128, or 192.
FLASHMASK_API Explanation explain(const Mask& mask, TileShape tile = {}, bool invariant = false);

/// Formats the explanation as a small table for people to read.
FLASHMASK_API std::string to_string(const Explanation& explanation);

}  // namespace flashmask
