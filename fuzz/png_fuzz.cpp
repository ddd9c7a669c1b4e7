// SPDX-License-Identifier: Apache-2.0
// Any bytes as a picture of a mask, as they are and with corrected checksums, so that the code behind the checksum test
// is reached. They are read, with the same mask after writing it again, or refused with a message.

#include <png.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "cli/files/mask_file.h"
#include "flashmask/error.h"

namespace {

using flashmask::Mask;

void check(bool holds) {
  if (!holds) std::abort();
}

Mask read(std::span<const std::byte> file) { return flashmask::cli::mask_from_png(file, "fuzz.png"); }

/// The header's number at `offset`, big-endian; 0 past the end.
std::uint64_t number_at(std::span<const std::byte> file, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = offset; i < offset + 4 && i < file.size(); ++i) {
    value = value << 8 | std::to_integer<std::uint64_t>(file[i]);
  }
  return value;
}

/// Whether a picture is small enough: a few bytes may describe one that takes minutes.
bool small(std::span<const std::byte> file) {
  constexpr std::size_t kWidth = 16, kHeight = 20;  // offsets in the file
  return number_at(file, kWidth) * number_at(file, kHeight) <= 1 << 18;
}

std::vector<std::byte> encode(const Mask& mask) {
  std::vector<std::uint8_t> pixels = flashmask::expand(mask);
  for (std::uint8_t& pixel : pixels) pixel = pixel == 0 ? 0 : 255;
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(mask.shape().columns);
  image.height = static_cast<png_uint_32>(mask.shape().rows);
  image.format = PNG_FORMAT_GRAY;
  png_alloc_size_t size = 0;
  check(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr) != 0);
  std::vector<std::byte> file(size);
  check(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr) != 0);
  return file;
}

/// The file with the correct checksum in every chunk.
std::vector<std::byte> with_checksums(std::span<const std::byte> file) {
  constexpr std::size_t kSignature = 8, kFrame = 12, kChecksum = 4;
  std::vector<std::byte> mended(file.begin(), file.end());
  for (std::size_t chunk = kSignature; chunk + kFrame <= file.size();) {
    const std::uint64_t length = number_at(file, chunk);
    if (length > file.size() - chunk - kFrame) break;
    const std::size_t end = chunk + kFrame - kChecksum + length;
    const auto* checked = reinterpret_cast<const Bytef*>(&file[chunk + 4]);
    const auto checksum = crc32_z(0, checked, end - chunk - 4);
    for (std::size_t i = 0; i < kChecksum; ++i)
      mended[end + i] = static_cast<std::byte>(checksum >> (24 - 8 * i) & 0xFF);
    chunk = end + kChecksum;
  }
  return mended;
}

void read_or_refuse(std::span<const std::byte> file) {
  try {
    const Mask mask = read(file);
    check(flashmask::expand(read(encode(mask))) == flashmask::expand(mask));
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
    check(std::string_view(error.what()).starts_with("fuzz.png: "));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  if (!small(file)) return 0;
  read_or_refuse(file);
  read_or_refuse(with_checksums(file));
  return 0;
}
