// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashmask::cpu {

/// Storage of the 16-bit types; arithmetic is in float32.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

}  // namespace flashmask::cpu
