// SPDX-License-Identifier: Apache-2.0
#include <png.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "cli/base/memory_limit.h"
#include "cli/files/input_file.h"
#include "cli/files/mask_file.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr std::uint8_t kBlack = 0, kWhite = 255;

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(Status::invalid_argument, name + ": " + what);
}

/// libpng's simplified interface keeps its errors and memory in here; it must be freed in any case.
struct PngImage {
  PngImage() { image.version = PNG_IMAGE_VERSION; }
  ~PngImage() { png_image_free(&image); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;

  png_image image{};
};

/// Reads four bytes, the highest first.
std::size_t big_endian(std::span<const std::byte> bytes) {
  std::size_t value = 0;
  for (const std::byte byte : bytes.first(4)) value = value << 8 | std::to_integer<std::size_t>(byte);
  return value;
}

/// Checks the whole file, since libpng stops where the pixels are complete. A chunk is its length, a type, that many
/// bytes and a checksum of type and bytes.
void check_chunks(std::span<const std::byte> file, const std::string& name) {
  constexpr std::size_t kSignature = 8, kLength = 4, kType = 4, kChecksum = 4;
  constexpr std::size_t kEnd = 0x49454E44;  // "IEND"
  if (file.size() < kSignature || png_sig_cmp(reinterpret_cast<png_const_bytep>(file.data()), 0, kSignature) != 0) {
    refuse(name, "no PNG file: it does not begin as one does");
  }
  std::span<const std::byte> rest = file.subspan(kSignature);
  for (std::size_t type = 0; type != kEnd;) {
    if (rest.size() < kLength + kType + kChecksum) refuse(name, "cut off; write it again");
    const std::size_t length = big_endian(rest);
    if (rest.size() - kLength - kType - kChecksum < length) refuse(name, "cut off; write it again");
    const std::span checked = rest.subspan(kLength, kType + length);
    const auto checksum = crc32_z(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size());
    rest = rest.subspan(kLength + checked.size());
    if (checksum != big_endian(rest)) refuse(name, "a damaged PNG file: a checksum differs; write it again");
    rest = rest.subspan(kChecksum);
    type = big_endian(checked);
  }
}

std::string hexadecimal(std::uint8_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {kDigits[value / 16], kDigits[value % 16]};
}

/// The decoded picture: one byte per pixel if the file is grey, else four.
class Pixels {
 public:
  Pixels(std::span<const std::byte> file, const std::string& name) : name_(name) {
    check_chunks(file, name);
    PngImage png;
    png_image& image = png.image;
    if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0) {
      refuse(name, std::string("a damaged PNG file: ") + image.message);
    }
    const bool grey = (image.format & (PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_ALPHA)) == 0;
    image.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGBA;
    channels_ = grey ? 1 : 4;
    width_ = image.width;
    height_ = image.height;
    const std::size_t size = channels_ * width_ * height_;
    check_memory(static_cast<double>(size), name + ": decoding it", "give a smaller picture");
    bytes_.resize(size);
    if (png_image_finish_read(&image, nullptr, bytes_.data(), 0, nullptr) == 0) {
      refuse(name, std::string("a damaged PNG file: ") + image.message);
    }
  }

  std::size_t width() const { return width_; }
  std::size_t height() const { return height_; }

  /// Turns the pixels into scores, one byte each: 0 for black, 1 for white. Throws at the first pixel of another
  /// colour.
  std::vector<std::uint8_t> take_scores() {
    const std::size_t pixels = width_ * height_;
    for (std::size_t i = 0; i < pixels; ++i) bytes_[i] = score(i);
    bytes_.resize(pixels);
    return std::move(bytes_);
  }

 private:
  std::uint8_t score(std::size_t pixel) const {
    const std::uint8_t* colour = &bytes_[pixel * channels_];
    const bool opaque = channels_ == 1 || colour[3] == kWhite;
    const bool grey = channels_ == 1 || (colour[0] == colour[1] && colour[0] == colour[2]);
    if (opaque && grey && (colour[0] == kBlack || colour[0] == kWhite)) return colour[0] == kWhite ? 1 : 0;
    refuse(name_, "the pixel at row " + std::to_string(pixel / width_) + ", column " + std::to_string(pixel % width_) +
                      " is " + colour_text(pixel, opaque) +
                      "; expected black (masked) and white (visible) alone: turn off smoothing or apply a threshold");
  }

  std::string colour_text(std::size_t pixel, bool opaque) const {
    if (!opaque) return "transparent";
    const std::uint8_t* colour = &bytes_[pixel * channels_];
    const std::size_t last = channels_ == 1 ? 0 : 2;
    std::string text = "#";
    for (std::size_t c = 0; c < 3; ++c) text += hexadecimal(colour[std::min(c, last)]);
    return text;
  }

  const std::string& name_;
  std::size_t channels_ = 1, width_ = 0, height_ = 0;
  std::vector<std::uint8_t> bytes_;  ///< [height, width, channels]
};

}  // namespace

Mask mask_from_png(std::span<const std::byte> file, const std::string& name) {
  Pixels pixels(file, name);
  const MaskShape shape{1, 1, static_cast<std::int64_t>(pixels.height()), static_cast<std::int64_t>(pixels.width())};
  const std::vector<std::uint8_t> scores = pixels.take_scores();
  const Mask mask = from_dense(shape, scores);
  return {mask.lowered(), std::filesystem::path(name).filename().string(), mask.misfit()};
}

Mask read_mask_png(const std::string& path) {
  const InputFile file(path);
  const FileBytes bytes = file.read(0, file.size());
  return mask_from_png(bytes.span(), path);
}

}  // namespace flashmask::cli
