// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/backward_workspace.h"

#include <algorithm>

#include "cuda/common/sections.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda {
namespace {

/// The most counters that bundles of key tiles and row tiles can need: with the smallest tiles that any kernel has.
std::int64_t bundle_count(const Problem& problem, std::int64_t padded_rows) {
  constexpr std::int64_t kRows = std::int64_t{64} * kBundle, kColumns = std::int64_t{128} * kBundle;
  return problem.batch * problem.kv_heads *
         ((padded_rows + kRows - 1) / kRows + (problem.key_length + kColumns - 1) / kColumns);
}

}  // namespace

BackwardWorkspace::BackwardWorkspace(const Problem& problem, std::int64_t head_dim, std::byte* memory)
    : counters(nullptr),
      counter_count(0),
      rows{},
      query_sums(nullptr),
      sink_sums(nullptr),
      sink_pieces(0),
      bias_sums(nullptr),
      bytes(0) {
  const auto take = [&](std::int64_t count) {
    std::byte* const piece = memory == nullptr || count == 0 ? nullptr : memory + bytes;
    bytes += (static_cast<std::size_t>(count) * sizeof(float) + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
             kWorkspaceAlignment;
    return piece;
  };
  rows.padded = std::max<std::int64_t>((problem.query_length + kPaddedRows - 1) / kPaddedRows, 1) * kPaddedRows;
  const std::int64_t all_rows = problem.batch * problem.query_heads * rows.padded;
  counter_count = kLaunches + 1 + (head_dim == 0 ? 0 : static_cast<int>(bundle_count(problem, rows.padded)));
  counters = reinterpret_cast<int*>(take(counter_count));
  rows.lse_log2 = reinterpret_cast<float*>(take(all_rows));
  rows.dot = reinterpret_cast<float*>(take(all_rows));
  query_sums = reinterpret_cast<float*>(take(all_rows * head_dim));
  sink_pieces = (rows.padded + kSinkRows - 1) / kSinkRows;
  sink_sums = reinterpret_cast<float*>(take(problem.batch * problem.query_heads * sink_pieces));
  if (problem.change.bias() == ScoreBias::distances)
    bias_sums = reinterpret_cast<float*>(take(problem.batch * problem.query_heads *
                                              (bias_tiles(problem.query_length) + bias_tiles(problem.key_length)) * 2 *
                                              kBiasTile));
  if (const std::int64_t parts = bias_parts(problem); parts > 1)
    bias_sums = reinterpret_cast<float*>(take(parts * bias_tiles(problem) * kBiasTile * kBiasTile));
}

}  // namespace flashmask::cuda
