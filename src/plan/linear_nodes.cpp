// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_nodes.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "flashmask/error.h"

namespace flashmask {
namespace {

void require(bool accepted, const char* field, std::int64_t given, const std::string& expected) {
  if (!accepted)
    throw Error(Status::invalid_argument,
                std::string("linear_attention: ") + field + " is " + std::to_string(given) + "; expected " + expected);
}

/// Appends numbers of tokens or nodes, moved on by `by`; −1, which stands for none, stays.
void append_moved(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& numbers, std::int64_t by) {
  for (const std::int64_t number : numbers) to.push_back(number < 0 ? number : number + by);
}

/// Returns the nodes of a batch whose entries all have the given ones.
Nodes repeated(const Nodes& one, std::int64_t batch) {
  const std::int64_t tokens = std::ssize(one.predecessors), count = std::ssize(one.begins);
  Nodes all;
  for (std::int64_t b = 0; b < batch; ++b) {
    append_moved(all.begins, one.begins, b * tokens);
    append_moved(all.ends, one.ends, b * tokens);
    append_moved(all.parents, one.parents, b * count);
    append_moved(all.levels, one.levels, 0);
    append_moved(all.predecessors, one.predecessors, b * tokens);
  }
  return all;
}

}  // namespace

float LinearProblem::query_scale() const {
  return scale.has_value() ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_dim)));
}

void validate(const LinearProblem& p) {
  constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
  const std::string dim = "1 … " + std::to_string(kMaxHeadDim);
  require(p.batch >= 0, "batch", p.batch, "0 or more");
  require(p.length >= 0 && p.length <= kMaxLength, "length", p.length, "0 … 2147483647 tokens");
  require(p.key_heads >= 0, "key_heads", p.key_heads, "0 or more");
  if (p.key_heads == 0)
    require(p.heads == 0, "heads", p.heads, "0, as key_heads is 0");
  else
    require(p.heads >= 1 && p.heads % p.key_heads == 0, "heads", p.heads,
            "a multiple of key_heads, which is " + std::to_string(p.key_heads));
  require(p.key_dim >= 1 && p.key_dim <= kMaxHeadDim, "key_dim", p.key_dim, dim);
  require(p.value_dim >= 1 && p.value_dim <= kMaxHeadDim, "value_dim", p.value_dim, dim);
  if (!std::isfinite(p.query_scale()))
    throw Error(Status::invalid_argument,
                "linear_attention: scale is not finite; expected a number, or nothing for 1/sqrt(key_dim)");
}

Nodes linear_nodes(const Mask& mask, const LinearProblem& problem) {
  const MaskShape& shape = mask.shape();
  if (shape.rows != problem.length || shape.columns != problem.length ||
      (shape.batch != 1 && shape.batch != problem.batch))
    throw Error(Status::invalid_argument,
                "linear_attention: " + mask.description() + " has batch " + std::to_string(shape.batch) + ", " +
                    std::to_string(shape.rows) + " rows and " + std::to_string(shape.columns) +
                    " columns; expected batch 1 or " + std::to_string(problem.batch) + ", and " +
                    std::to_string(problem.length) + " rows and columns, the tokens of q");
  Nodes found;
  try {
    found = nodes(mask);
  } catch (const Error& error) {
    throw Error(error.status(), std::string("linear_attention: ") + error.what() +
                                    " (docs/linear.md lists the masks that linear attention takes)");
  }
  return shape.batch == problem.batch ? found : repeated(found, problem.batch);
}

}  // namespace flashmask
