// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/language_standard.h"

namespace flashmask {

enum class DType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2 };

}  // namespace flashmask
