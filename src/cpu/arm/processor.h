// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashmask::cpu {

/// Whether the processor has the bfloat16 dot product, BFDOT. Each system has its own way to ask (linux/ or apple/, by
/// CMake).
bool has_bf16_dot();

}  // namespace flashmask::cpu
