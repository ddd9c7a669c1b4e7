// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/problem_refusal.h"

#include <algorithm>

namespace flashmask::cuda {

std::string problem_refusal(const Problem& problem) {
  if (problem.head_dim % 8 != 0 || problem.value_dim % 8 != 0)
    return "a head dim is no multiple of 8; pad the heads with zeros";
  if (!(static_cast<float>(problem.softmax_scale()) > 0)) return "the scale is not above 0";
  // No kernel pads a head by more rows.
  constexpr std::int64_t kPadding = 1024;
  const std::int64_t heads = problem.batch * problem.query_heads;
  if (heads * (problem.query_length + kPadding) >= kItemLimit ||
      problem.batch * problem.kv_heads * (problem.key_length + kPadding) >= kItemLimit)
    return "it has 2^31 rows or more, over all heads";
  return "";
}

}  // namespace flashmask::cuda
