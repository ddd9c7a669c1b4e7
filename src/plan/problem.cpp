// SPDX-License-Identifier: Apache-2.0
#include "flashmask/problem.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/checks.h"
#include "flashmask/error.h"

namespace flashmask {
namespace {

void require(bool accepted, const char* field, std::int64_t given, const std::string& expected) {
  if (!accepted)
    throw Error(Status::invalid_argument,
                std::string("problem: ") + field + " is " + std::to_string(given) + "; expected " + expected);
}

/// Probabilities are rounded to multiples of 2^−16; one that rounds to 1 would keep nothing.
void require_dropout(double dropout) {
  if (dropout >= 0 && std::lround(dropout * 65536) < 65536) return;
  throw Error(Status::invalid_argument, "problem: dropout is " + shortest(dropout) +
                                            "; expected a probability from 0 to 0.99999, as it is rounded to a "
                                            "multiple of 1/65536, and 1 would keep nothing");
}

}  // namespace

double Problem::softmax_scale() const {
  return change.factor() * (scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void validate(const Problem& problem) {
  constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
  const std::string length = "0 … 2147483647 tokens";
  const std::string dim = "1 … " + std::to_string(kMaxHeadDim);
  require(problem.batch >= 0, "batch", problem.batch, "0 or more");
  require(problem.query_length >= 0 && problem.query_length <= kMaxLength, "query_length", problem.query_length,
          length);
  require(problem.key_length >= 0 && problem.key_length <= kMaxLength, "key_length", problem.key_length, length);
  require(problem.kv_heads >= 0, "kv_heads", problem.kv_heads, "0 or more");
  if (problem.kv_heads == 0)
    require(problem.query_heads == 0, "query_heads", problem.query_heads, "0, as kv_heads is 0");
  else
    require(problem.query_heads >= 1 && problem.query_heads % problem.kv_heads == 0, "query_heads", problem.query_heads,
            "a multiple of kv_heads, which is " + std::to_string(problem.kv_heads));
  require(problem.head_dim >= 1 && problem.head_dim <= kMaxHeadDim, "head_dim", problem.head_dim, dim);
  require(problem.value_dim >= 1 && problem.value_dim <= kMaxHeadDim, "value_dim", problem.value_dim, dim);
  require_dropout(problem.dropout);
  if (!std::isfinite(static_cast<float>(problem.softmax_scale())))
    throw Error(Status::invalid_argument,
                "problem: scale is not finite in float32; expected a number, or nothing for 1/sqrt(head_dim)");
}

std::string to_string(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

}  // namespace flashmask
