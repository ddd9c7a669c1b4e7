// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/pictures/canvas.h"

namespace flashmask::cli {

/// Draws into pixels and encodes them as a PNG file.
class PngCanvas : public Canvas {
 public:
  PngCanvas(std::int64_t width, std::int64_t height);

  void fill(const Rectangle& where, Rgb colour) override;
  void write(std::int64_t x, std::int64_t y, const std::string& text, Rgb colour, TextDirection direction) override;

  /// The finished file.
  std::string encode() const;

 private:
  std::int64_t width_, height_;
  std::vector<Rgb> pixels_;  ///< [height, width]
};

}  // namespace flashmask::cli
