// SPDX-License-Identifier: Apache-2.0
// Any bytes as an .npy file of a mask, dense or packed, give the scores that the bytes say, or are refused with a
// message.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/files/mask_file.h"
#include "flashmask/error.h"

namespace {

using flashmask::Mask;
using flashmask::cli::NpyArray;

void check(bool holds) {
  if (!holds) std::abort();
}

/// Elements of the innermost dimension, and of all others together.
std::int64_t inner(const NpyArray& array) { return array.shape.back(); }
std::int64_t outer(const NpyArray& array) {
  std::int64_t count = 1;
  for (std::size_t i = 0; i + 1 < array.shape.size(); ++i) count *= array.shape[i];
  return count;
}

/// An element as a little-endian number.
std::uint64_t element(const NpyArray& array, const std::vector<std::byte>& data, std::int64_t index) {
  const std::size_t bytes = data.size() / static_cast<std::size_t>(inner(array) * outer(array));
  std::uint64_t value = 0;
  std::memcpy(&value, &data[static_cast<std::size_t>(index) * bytes], bytes);
  return value;
}

/// Calls body(row of scores counted through batch and heads, column, visible).
template <typename Body>
void for_each_score(const Mask& mask, const Body& body) {
  const auto& shape = mask.shape();
  for (std::int64_t row = 0; row < shape.batch * shape.heads * shape.rows; ++row) {
    const std::int64_t head = row / shape.rows;
    for (std::int64_t column = 0; column < shape.columns; ++column) {
      body(row, column, mask.visible(head / shape.heads, head % shape.heads, row % shape.rows, column));
    }
  }
}

void read_dense(const NpyArray& array, const std::vector<std::byte>& data) {
  const Mask mask = flashmask::cli::mask_from_npy(array, data, std::nullopt, "fuzz.npy");
  check(mask.shape().columns == inner(array));
  check(mask.shape().batch * mask.shape().heads * mask.shape().rows == outer(array));
  for_each_score(mask, [&](std::int64_t row, std::int64_t column, bool visible) {
    check(element(array, data, row * inner(array) + column) == (visible ? 1 : 0));
  });
}

void read_packed(const NpyArray& array, const std::vector<std::byte>& data) {
  const std::int64_t columns = inner(array) * 8 - inner(array) % 8;
  const Mask mask = flashmask::cli::mask_from_npy(array, data, columns, "fuzz.npy");
  check(mask.shape().columns == columns);
  for_each_score(mask, [&](std::int64_t row, std::int64_t column, bool visible) {
    const std::uint64_t byte = element(array, data, row * inner(array) + column / 8);
    check((byte >> column % 8 & 1) == (visible ? 1 : 0));
  });
}

template <typename Read>
void refused_or_read(const Read& read) {
  try {
    read();
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
    check(std::string_view(error.what()).starts_with("fuzz.npy: "));
  }
}

void read(std::string_view file) {
  const std::string_view head = file.substr(0, flashmask::cli::kLargestNpyHeader);
  const NpyArray array = flashmask::cli::describe_npy(head, file.size(), "fuzz.npy");
  check(array.begin + array.bytes == file.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  const std::vector<std::byte> data(bytes + array.begin, bytes + file.size());
  refused_or_read([&] { read_dense(array, data); });
  refused_or_read([&] { read_packed(array, data); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  refused_or_read([&] { read({reinterpret_cast<const char*>(data), size}); });
  return 0;
}
