// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashmask/mask.h"

namespace flashmask::cli {

/// An array in an .npy file that can be a mask: booleans or little-endian integers, rows outermost.
struct NpyArray {
  DenseType type = DenseType::i8;  ///< booleans are one-byte integers: NumPy writes 0 and 1
  std::string dtype;               ///< as the file spells it, such as "|b1"
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  ///< the array's first byte
  std::size_t bytes = 0;  ///< size of the array, which extends to the end of the file

  std::int64_t dim(std::size_t from_the_last) const { return shape[shape.size() - 1 - from_the_last]; }
};

/// The number of leading bytes that describe_npy() needs.
inline constexpr std::size_t kLargestNpyHeader = 65536;

/// Reads the header of formats 1.0, 2.0 and 3.0 (numpy.lib.format). `head` is the beginning of the file: all of it, or
/// kLargestNpyHeader bytes. Throws Status::invalid_argument with `name` unless the array has two to four dimensions,
/// none of them 0, and one of the element types above, and the file is exactly as long as its array.
NpyArray describe_npy(std::string_view head, std::size_t file_size, const std::string& name);

/// "(8, 512, 512)".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace flashmask::cli
