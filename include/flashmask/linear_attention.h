// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "flashmask/export.h"
#include "flashmask/problem.h"
#include "flashmask/tensor.h"

/// Linear attention with a decay under masks that are trees: plain, RetNet, Mamba-2's scalar decay, and mLSTM with its
/// normaliser and stabiliser (docs/linear.md). On a CPU.
namespace flashmask {

/// Shapes, dtype and kind of one call. With W(i, j) = e^(log_forget of j + 1 … i along i's path + log_input of j) where
/// row i sees column j, else 0:
///
///     o(i) = Σ_j W(i, j) scale (q(i) · k(j)) v(j), and if normalize divided by max(|Σ_j W(i, j) scale (q(i) · k(j))|,
///     1)
///
/// q, k (batch, length, key_heads, key_dim); v, o (batch, length, heads, value_dim); gates (batch, length, heads),
/// float32.
struct LinearProblem {
  std::int64_t batch = 1;
  std::int64_t length = 0;
  std::int64_t heads = 1;      ///< of v, the gates and o; a multiple of key_heads, and 0 where these are 0
  std::int64_t key_heads = 1;  ///< of q and k; head h reads key head h / (heads / key_heads)
  std::int64_t key_dim = 0;    ///< 1 … kMaxHeadDim
  std::int64_t value_dim = 0;  ///< 1 … kMaxHeadDim
  DType dtype = DType::f32;    ///< of q, k, v and o
  Device device = {};
  std::optional<float> scale = {};  ///< nullopt: 1 / sqrt(key_dim)
  bool normalize = false;           ///< divide as mLSTM does

  FLASHMASK_API float query_scale() const;
};

/// Throws Status::invalid_argument naming the first field that is out of range.
FLASHMASK_API void validate(const LinearProblem& problem);

}  // namespace flashmask
