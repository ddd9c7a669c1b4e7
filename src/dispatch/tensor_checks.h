#pragma once

#include "flashmask/attention.h"

namespace flashmask {

/// Throw Status::invalid_argument naming the first tensor whose rank, shape, dtype, device, stride or pointer does not
/// fit the problem.
void check_tensors(const Problem& problem, const ForwardTensors& tensors);
void check_tensors(const Problem& problem, const BackwardTensors& tensors);

}  // namespace flashmask
