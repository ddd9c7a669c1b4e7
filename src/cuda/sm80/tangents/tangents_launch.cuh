// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/instances.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_checks.h"
#include "cuda/common/views.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/tangents/tangents.h"
#include "cuda/sm80/tangents/tangents_kernel.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm80 {

inline void check_tangent_rows(const TangentTensors& tensors) {
  check_rows("forward_tangents: q", tensors.q);
  check_rows("forward_tangents: k", tensors.k);
  check_rows("forward_tangents: v", tensors.v);
  check_rows("forward_tangents: o", tensors.o);
  check_rows("forward_tangents: tangent_o", tensors.tangent_o);
  if (tensors.tangent_q.present()) check_rows("forward_tangents: tangent_q", tensors.tangent_q);
  if (tensors.tangent_k.present()) check_rows("forward_tangents: tangent_k", tensors.tangent_k);
  if (tensors.tangent_v.present()) check_rows("forward_tangents: tangent_v", tensors.tangent_v);
}

/// One kernel serves plain scores; a second also changes scores and drops probabilities, where a call asks for it.
template <class T, int kDim>
void launch_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map) {
  using Shape = TangentsShape<T, kDim>;
  using Memory = TangentsMemory<Shape>;
  static_assert(sizeof(Memory) <= kCompactSharedBytes);
  const Problem& problem = plan.problem();
  check_tangent_rows(tensors);
  RowArguments rows = row_arguments(
      plan, map, score_arguments(problem, execution, tensors.sinks, tensors.alibi, tensors.bias), nullptr);
  // Twice the rows that the forward reads: half as many heads side by side.
  rows.section_heads =
      heads_in_section(problem, static_cast<std::int64_t>(device_facts(problem.device).cache_bytes / 20 * 3));
  if (rows.items == 0) return;
  const auto kernel = has_plain_scores(problem) ? tangents_kernel<Shape> : tangents_kernel<Changing<Dropping<Shape>>>;
  launch<Memory>("forward_tangents", kernel, rows.items, Shape::kThreads, static_cast<cudaStream_t>(execution.stream),
                 tangent_arguments(rows, tensors));
}

}  // namespace flashmask::cuda::sm80
