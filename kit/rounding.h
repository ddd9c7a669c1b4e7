// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/tensor.h"

/// The half types as 16-bit words, rounded to nearest even.
namespace flashmask::check {

std::uint16_t to_bf16(float value);
std::uint16_t to_f16(float value);
float from_bf16(std::uint16_t word);
float from_f16(std::uint16_t word);

/// The nearest value of a dtype.
float round_to(DType dtype, float value);

}  // namespace flashmask::check
