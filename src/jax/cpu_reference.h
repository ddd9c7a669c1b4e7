// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "jax/call.h"

// float64 on a CPU, by the dense reference. Tensors are (batch, sequence, heads, head dim) and hold doubles, whatever
// dtype their views say.
namespace flashmask::jax {

void reference_forward(const Call& call, const ForwardTensors& tensors, Executor& executor);
void reference_backward(const Call& call, const BackwardTensors& tensors, Executor& executor);

}  // namespace flashmask::jax
