// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace flashmask::cuda::compile {

/// FNV-1a, by which files are named and damage is found.
constexpr std::uint64_t checksum(std::string_view bytes, std::uint64_t before = 0xcbf29ce484222325) {
  for (const char byte : bytes) before = (before ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return before;
}

}  // namespace flashmask::cuda::compile
