// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace flashmask::cli {

struct Rgb {
  std::uint8_t red = 0, green = 0, blue = 0;

  friend bool operator==(const Rgb&, const Rgb&) = default;
};

/// `amount` of `b` over `a`, 0 to 1.
inline Rgb mix(Rgb a, Rgb b, float amount) {
  const auto blend = [amount](std::uint8_t x, std::uint8_t y) {
    return static_cast<std::uint8_t>(std::lround(static_cast<float>(x) + amount * static_cast<float>(y - x)));
  };
  return {blend(a.red, b.red), blend(a.green, b.green), blend(a.blue, b.blue)};
}

/// In pixels; y points down.
struct Rectangle {
  std::int64_t x = 0, y = 0, width = 0, height = 0;
};

struct Point {
  std::int64_t x = 0, y = 0;
};

enum class TextDirection : std::uint8_t { right, down };

/// A surface to draw a picture on, whatever the file format.
class Canvas {
 public:
  virtual ~Canvas() = default;

  virtual void fill(const Rectangle& where, Rgb colour) = 0;

  /// Writes one line of text in a box kTextHeight high, whose top left corner is (x, y).
  virtual void write(std::int64_t x, std::int64_t y, const std::string& text, Rgb colour,
                     TextDirection direction = TextDirection::right) = 0;
};

inline constexpr std::int64_t kTextHeight = 18;      ///< height of the box of a line of text
inline constexpr std::int64_t kCharacterWidth = 12;  ///< text is monospaced

}  // namespace flashmask::cli
