// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "flashmask/linear_attention.h"

/// How wide heads of linear attention are cut into slices of keys and values, each of which one walk takes.
namespace flashmask::cuda {

inline constexpr int kSliceDim = 128;  ///< keys and values of a slice
/// Widest keys and values that are served in slices.
inline constexpr std::int64_t kMostSlicedKeys = 256, kMostSlicedValues = 512;

inline int slices(std::int64_t dim, int width) { return static_cast<int>((dim + width - 1) / width); }
inline int key_slices(const LinearProblem& problem) { return slices(problem.key_dim, kSliceDim); }
inline int value_slices(const LinearProblem& problem) { return slices(problem.value_dim, kSliceDim); }

}  // namespace flashmask::cuda
