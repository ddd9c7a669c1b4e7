// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/png_canvas.h"

#include <png.h>

#include <algorithm>

#include "cli/pictures/pixel_font.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const png_image& image) {
  throw Error(Status::internal, std::string("the picture cannot be encoded as PNG: ") + image.message);
}

}  // namespace

PngCanvas::PngCanvas(std::int64_t width, std::int64_t height)
    : width_(width), height_(height), pixels_(static_cast<std::size_t>(width * height)) {}

void PngCanvas::fill(const Rectangle& where, Rgb colour) {
  const std::int64_t left = std::clamp<std::int64_t>(where.x, 0, width_);
  const std::int64_t right = std::clamp<std::int64_t>(where.x + where.width, left, width_);
  const std::int64_t bottom = std::min(where.y + where.height, height_);
  for (std::int64_t y = std::max<std::int64_t>(where.y, 0); y < bottom; ++y) {
    const auto row = pixels_.begin() + static_cast<std::ptrdiff_t>(y * width_);
    std::fill(row + left, row + right, colour);
  }
}

void PngCanvas::write(std::int64_t x, std::int64_t y, const std::string& text, Rgb colour, TextDirection direction) {
  constexpr std::int64_t kScale = kTextHeight / kGlyphHeight;
  std::int64_t pen = 0;
  for (const char c : text) {
    for (const GlyphPixel& pixel : glyph(c)) {
      const std::int64_t along = pen + pixel.x * kScale, down = pixel.y * kScale;
      // Text that runs downwards is turned clockwise: the tops of its letters point right.
      const Rectangle dot = direction == TextDirection::right
                                ? Rectangle{x + along, y + down, kScale, kScale}
                                : Rectangle{x + kTextHeight - kScale - down, y + along, kScale, kScale};
      fill(dot, colour);
    }
    pen += kCharacterWidth;
  }
}

std::string PngCanvas::encode() const {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width_);
  image.height = static_cast<png_uint_32>(height_);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  if (png_image_write_to_memory(&image, nullptr, &size, 0, pixels_.data(), 0, nullptr) == 0) refuse(image);
  std::string file(size, '\0');
  if (png_image_write_to_memory(&image, file.data(), &size, 0, pixels_.data(), 0, nullptr) == 0) refuse(image);
  file.resize(size);
  return file;
}

}  // namespace flashmask::cli
