// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "flashmask/mask.h"

/// .npy files as NumPy writes them, and as nobody should.
namespace flashmask::cli {

/// Format 1.0, padded to 64 bytes.
inline std::string npy_header(const std::string& dictionary) {
  std::string text = dictionary;
  text.resize((text.size() + 10 + 64) / 64 * 64 - 11, ' ');
  text += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(text.size() % 256) +
         static_cast<char>(text.size() / 256) + text;
}

/// numpy.save of an array, in memory as it is.
inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  return npy_header("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }") + data;
}

/// Numbers as little-endian elements.
template <class Element>
std::string elements(const std::vector<int>& values) {
  std::string bytes;
  for (const int value : values) {
    for (std::size_t i = 0; i < sizeof(Element); ++i) bytes += static_cast<char>(i == 0 ? value : 0);
  }
  return bytes;
}

/// The scores of one head, a byte each.
inline std::string dense_bytes(const Mask& mask) {
  const std::vector<std::uint8_t> scores = expand(mask);
  return {scores.begin(), scores.end()};
}

inline std::string rows_columns(const Mask& mask) {
  return "(" + std::to_string(mask.shape().rows) + ", " + std::to_string(mask.shape().columns) + ")";
}

}  // namespace flashmask::cli
