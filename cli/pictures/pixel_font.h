// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace flashmask::cli {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 9;  ///< seven above the baseline, two below

struct GlyphPixel {
  int x = 0, y = 0;
};

/// The dark pixels of a character in a small built-in font, for labels without a font file. Capitals appear as small
/// letters; a character that the font lacks is an empty box.
const std::vector<GlyphPixel>& glyph(char character);

}  // namespace flashmask::cli
