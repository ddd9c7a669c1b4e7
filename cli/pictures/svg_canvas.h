// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/pictures/canvas.h"

namespace flashmask::cli {

/// Draws into the text of an SVG file.
class SvgCanvas : public Canvas {
 public:
  SvgCanvas(std::int64_t width, std::int64_t height);

  void fill(const Rectangle& where, Rgb colour) override;
  void write(std::int64_t x, std::int64_t y, const std::string& text, Rgb colour, TextDirection direction) override;

  /// The finished file.
  std::string encode() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

}  // namespace flashmask::cli
