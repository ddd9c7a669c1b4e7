// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kit/rounding.h"

/// Stands in for CUDA's type where kernels are compiled for a CPU, which only name it and read it.
struct __nv_bfloat16 {
  std::uint16_t word;

  explicit operator float() const { return flashmask::check::from_bf16(word); }
};
