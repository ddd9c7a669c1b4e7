// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/scores/logarithms.h"
#include "flashmask/attention.h"
#include "flashmask/problem.h"

namespace flashmask::cuda {

/// A bias tensor as kernels are given it: what is added to each score, or to the scores of each distance.
struct BiasArguments {
  const void* values;             // null: no bias tensor
  std::int64_t batch, head, row;  // elements between batch entries, query heads and rows; 0: they share their values
  DType dtype;
  bool in_pairs;   // columns come in pairs: two 16-bit values, from an even column on, are one aligned word
  bool distances;  // a row has `entries` values by distance, instead of a value for each column
  int entries;
  int shift;  // the entry for row i and column j is i − j + shift
  int query_length, key_length;
  float to_products;   // turns a value into what is added to a product, for kernels that scale the sum
  float product_log2;  // what turns products, bounded ones where scores are capped, into powers of two

  /// Turns a product into the power of two of a score to which `value` is added. From here on scores need no scale, and
  /// a row's maximum is exactly its largest score, however large the values: a maximum that is multiplied by a scale is
  /// rounded apart from it.
  __device__ __forceinline__ float add_to(float product, float value) const {
    return fmaf(product, product_log2, value * kLog2E);
  }

  /// Returns the entry of a score in its row.
  __device__ __forceinline__ int entry(int row_number, int column) const {
    return distances ? row_number - column + shift : column;
  }
};

/// `scale`: what turns products, bounded ones where scores are capped, into scores.
inline BiasArguments bias_arguments(const Problem& problem, const BiasTensor& bias, float scale) {
  if (!has_bias_tensor(problem)) return {};
  const TensorView& values = bias.values;
  const auto between = [&](int axis) { return values.shape[axis] == 1 ? 0 : values.strides[axis]; };
  const bool distances = problem.change.bias() == ScoreBias::distances;
  BiasArguments made{.values = values.data,
                     .batch = between(0),
                     .head = between(1),
                     .row = between(2),
                     .dtype = values.dtype,
                     .in_pairs = false,
                     .distances = distances,
                     .entries = static_cast<int>(values.shape[3]),
                     .shift = 0,
                     .query_length = static_cast<int>(problem.query_length),
                     .key_length = static_cast<int>(problem.key_length),
                     .to_products = 1 / scale,
                     .product_log2 = scale * kLog2E};
  if (distances) {
    constexpr std::int64_t kFar = std::int64_t{1} << 30;  // further from all entries than there are tokens
    made.shift = static_cast<int>(std::clamp(problem.key_length - problem.query_length + bias.origin, -kFar, kFar));
  } else {
    made.in_pairs = values.dtype != DType::f32 && reinterpret_cast<std::uintptr_t>(values.data) % 4 == 0 &&
                    (made.batch | made.head | made.row | problem.key_length) % 2 == 0;
  }
  return made;
}

}  // namespace flashmask::cuda
