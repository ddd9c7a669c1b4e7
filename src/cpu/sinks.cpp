// SPDX-License-Identifier: Apache-2.0
#include "cpu/sinks.h"

#include <algorithm>
#include <cmath>

#include "cpu/elements.h"
#include "cpu/launch.h"

namespace flashmask::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736F;

/// Returns the offset of a row's sink, in elements.
std::int64_t offset_of(const TensorView& sinks, std::int64_t batch, std::int64_t head, std::int64_t row) {
  if (sinks.rank == 1) return head * sinks.strides[0];
  return batch * sinks.strides[0] + head * sinks.strides[1] + row * sinks.strides[2];
}

}  // namespace

void read_sinks(const TensorView& sinks, std::int64_t batch, std::int64_t head, std::int64_t row0,
                float (&of_rows)[kForwardRows]) {
  if (sinks.rank == 1) {
    std::fill_n(of_rows, kForwardRows, read_element(sinks, offset_of(sinks, batch, head, row0)));
    return;
  }
  const std::int64_t rows = std::min<std::int64_t>(sinks.shape[2] - row0, kForwardRows);
  for (std::int64_t i = 0; i < rows; ++i) of_rows[i] = read_element(sinks, offset_of(sinks, batch, head, row0 + i));
  std::fill(of_rows + rows, of_rows + kForwardRows, 0.0F);
}

void differentiate_sinks(const TensorView& sinks, const TensorView& grad_sinks, const RowStatistics& rows, double* sums,
                         const KernelExecution& execution) {
  const Problem& problem = rows.problem;
  const std::int64_t heads = problem.query_heads, length = problem.query_length;
  for_each_task(execution.executor, execution.workers, problem.batch * heads, [&](std::int64_t task, int) {
    const std::int64_t batch = task / heads, head = task % heads;
    const float* const lse2 = rows.first.lse2 + task * rows.padded_rows;
    const float* const delta = rows.first.delta + task * rows.padded_rows;
    const bool of_rows = sinks.rank == 3;
    float sink = of_rows ? 0 : read_element(sinks, offset_of(sinks, batch, head, 0));
    double sum = 0;
    for (std::int64_t row = 0; row < length; ++row) {
      if (of_rows) sink = read_element(sinks, offset_of(sinks, batch, head, row));
      const float gradient = -std::exp2(sink * kLog2E - lse2[row]) * delta[row];
      if (of_rows) write_element(grad_sinks, offset_of(grad_sinks, batch, head, row), gradient);
      sum += gradient;
    }
    sums[task] = sum;
  });
  if (sinks.rank == 3) return;
  for (std::int64_t head = 0; head < heads; ++head) {
    double sum = 0;
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) sum += sums[batch * heads + head];
    write_element(grad_sinks, head * grad_sinks.strides[0], static_cast<float>(sum));
  }
}

}  // namespace flashmask::cpu
