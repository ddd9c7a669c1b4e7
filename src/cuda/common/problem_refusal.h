#pragma once

#include <string>

#include "flashmask/problem.h"

namespace flashmask::cuda {

/// Problems have fewer rows, padding included, tiles of them and tokens: indices fit 32 bits.
constexpr std::int64_t kItemLimit = std::int64_t{1} << 31;

/// Why kernels for heads of (head_dim, value_dim) cannot serve a problem; empty when they can.
std::string problem_refusal(const Problem& problem, int head_dim, int value_dim);

}  // namespace flashmask::cuda
