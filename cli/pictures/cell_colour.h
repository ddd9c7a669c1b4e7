// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/pictures/canvas.h"
#include "flashmask/schedule.h"

namespace flashmask::cli {

inline constexpr Rgb kSkipColour{240, 242, 245};
inline constexpr Rgb kFullColour{29, 78, 137};
inline constexpr Rgb kPartialMaskedColour{253, 228, 200};
inline constexpr Rgb kPartialVisibleColour{201, 88, 16};

/// The colour of a cell of scores: the tint of its tile's kind, darker the more of the cell is visible.
inline Rgb cell_colour(TileKind kind, float visible) {
  if (kind == TileKind::full) return kFullColour;
  if (kind == TileKind::skip) return kSkipColour;
  return mix(kPartialMaskedColour, kPartialVisibleColour, visible);
}

}  // namespace flashmask::cli
