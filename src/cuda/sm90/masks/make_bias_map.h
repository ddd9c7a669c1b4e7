// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/bias_map.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm90 {

/// Describes the bias of a call, or its gradient, to the copy engine, which copies so many rows at a time. It takes
/// numbers of the problem's dtype that begin at a multiple of 16 bytes, as all rows do.
inline BiasMap make_bias_map(const char* name, const Problem& problem, const BiasTensor& bias,
                             int rows = kBiasPanelRows) {
  constexpr std::int64_t kAlignment = 8, kFarthest = std::int64_t{1} << 39;  // in numbers, of two bytes
  const TensorView& values = bias.values;
  BiasMap made{};
  if (problem.change.bias() != ScoreBias::tensor || values.dtype != problem.dtype || values.data == nullptr)
    return made;
  const auto varies = [&](std::size_t axis) { return values.shape[axis] > 1 && values.strides[axis] != 0; };
  bool reads = reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0 && (varies(2) || problem.query_length == 1);
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t stride = values.strides[axis];
    if (varies(axis)) reads = reads && stride > 0 && stride < kFarthest && stride % kAlignment == 0;
  }
  if (!reads) return made;
  made.exists = true;
  made.of_batch = varies(0) ? 1 : 0;
  made.of_head = varies(1) ? 1 : 0;
  TensorView seen = values;  // (batch, queries, heads, keys), with an entry where all are the same
  seen.shape = {varies(0) ? values.shape[0] : 1, values.shape[2], varies(1) ? values.shape[1] : 1, values.shape[3]};
  seen.strides = {values.strides[0], values.strides[2], values.strides[1], values.strides[3]};
  made.map = make_tensor_map(name, seen, rows);
  return made;
}

}  // namespace flashmask::cuda::sm90
