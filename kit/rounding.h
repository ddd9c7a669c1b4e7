// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/tensor.h"

/// Convert to and from the 16-bit dtypes as words, rounding to nearest even.
namespace flashmask::check {

std::uint16_t to_bf16(float value);
std::uint16_t to_f16(float value);
float from_bf16(std::uint16_t word);
float from_f16(std::uint16_t word);

/// Rounds to the nearest value of a dtype.
float round_to(DType dtype, float value);

}  // namespace flashmask::check
