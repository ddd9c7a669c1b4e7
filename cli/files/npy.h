// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashmask/mask.h"

namespace flashmask::cli {

/// Where an .npy file holds an array that can be a mask: booleans or little-endian integers, rows outermost.
struct NpyArray {
  DenseType type = DenseType::i8;  ///< booleans are integers of one byte: NumPy writes 0 and 1
  std::string dtype;               ///< as the file says it, such as "|b1"
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  ///< the array's first byte
  std::size_t bytes = 0;  ///< of the array, to the end of the file

  std::int64_t dim(std::size_t from_the_last) const { return shape[shape.size() - 1 - from_the_last]; }
};

/// How much of a file describe_npy() needs.
inline constexpr std::size_t kLargestNpyHeader = 65536;

/// Reads the header of the formats 1.0, 2.0 and 3.0 (numpy.lib.format). `head` is the file's beginning, all of it or
/// kLargestNpyHeader bytes. Throws Status::invalid_argument with `name` on anything else than two to four dimensions,
/// none of them 0, of the element types above, and on a file that is shorter or longer than its array.
NpyArray describe_npy(std::string_view head, std::size_t file_size, const std::string& name);

/// "(8, 512, 512)".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace flashmask::cli
