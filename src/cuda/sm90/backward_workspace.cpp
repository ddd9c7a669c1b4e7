#include "cuda/sm90/backward_workspace.h"

#include <algorithm>

namespace flashmask::cuda::sm90 {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

BackwardWorkspace::BackwardWorkspace(const Problem& problem, std::int64_t head_dim, std::byte* memory)
    : counters(nullptr), counter_count(0), rows{}, query_sums(nullptr), bytes(0) {
  const auto take = [&](std::int64_t count) {
    std::byte* const piece = memory == nullptr || count == 0 ? nullptr : memory + bytes;
    bytes += (static_cast<std::size_t>(count) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  };
  rows.padded = std::max<std::int64_t>((problem.query_length + kPaddedRows - 1) / kPaddedRows, 1) * kPaddedRows;
  const std::int64_t all_rows = problem.batch * problem.query_heads * rows.padded;
  counter_count = kCounters + static_cast<int>(problem.batch * problem.kv_heads);
  counters = reinterpret_cast<int*>(take(counter_count));
  rows.lse_log2 = reinterpret_cast<float*>(take(all_rows));
  rows.dot = reinterpret_cast<float*>(take(all_rows));
  query_sums = reinterpret_cast<float*>(take(all_rows * head_dim));
}

}  // namespace flashmask::cuda::sm90
