// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "flashmask/export.h"
#include "flashmask/score_change.h"
#include "flashmask/tensor.h"

namespace flashmask {

/// The largest head_dim and value_dim of a call; a kernel's limit may be lower.
inline constexpr std::int64_t kMaxHeadDim = 512;

enum class Direction : std::uint8_t { forward, backward };

/// Shapes, dtype and device of one attention call; everything but the data.
/// q (batch, query_length, query_heads, head_dim); k (batch, key_length, kv_heads, head_dim);
/// v (batch, key_length, kv_heads, value_dim); o (batch, query_length, query_heads, value_dim);
/// lse (batch, query_heads, query_length), float32, natural logarithm, scale included.
struct Problem {
  std::int64_t batch = 1;
  std::int64_t query_length = 0;
  std::int64_t key_length = 0;
  std::int64_t query_heads = 1;  ///< a multiple of kv_heads, and 0 where these are 0
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;   ///< 1 … kMaxHeadDim
  std::int64_t value_dim = 0;  ///< 1 … kMaxHeadDim
  DType dtype = DType::f32;
  Device device = {};
  /// nullopt: 1 / sqrt(head_dim). Kernels round it to float32; the reference does not.
  std::optional<double> scale = {};
  /// Probability with which each attention probability is dropped, 0 to 0.99999; see dropout.h. 0: no dropout.
  double dropout = 0;
  /// What happens to scores before any is masked, such as scores::softcap(50) | scores::alibi().
  ScoreChange change = {};

  /// What products of queries and keys are multiplied by: the scale, and the factor that the change begins with.
  FLASHMASK_API double softmax_scale() const;
};

/// Throws Status::invalid_argument naming the first field that is out of range.
FLASHMASK_API void validate(const Problem& problem);

/// Whether a problem's calls are given a BiasTensor.
inline bool has_bias_tensor(const Problem& problem) {
  const ScoreBias bias = problem.change.bias();
  return bias == ScoreBias::tensor || bias == ScoreBias::distances;
}

FLASHMASK_API std::string to_string(Direction direction);

}  // namespace flashmask
