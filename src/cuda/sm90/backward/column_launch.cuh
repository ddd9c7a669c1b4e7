// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/launch.cuh"
#include "cuda/runtime/device.h"
#include "cuda/sm90/backward/column_kernel.cuh"
#include "cuda/sm90/fused/fused.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {

/// Bytes of L2 cache, of 50 to 60 MB, that the queries, the sums for their gradients and the gradients of the output
/// may take for the heads that run side by side (sections.h).
inline constexpr std::int64_t kColumnSectionBytes = std::int64_t{36} << 20;

/// Sets where the gradients go.
inline void set_outputs(ColumnArguments& arguments, const BackwardTensors& tensors) {
  arguments.grad_q = tensors.grad_q.data;
  arguments.grad_q_batch = tensors.grad_q.strides[0];
  arguments.grad_q_row = tensors.grad_q.strides[1];
  arguments.grad_q_head = tensors.grad_q.strides[2];
  arguments.grad_k = tensors.grad_k.data;
  arguments.grad_k_batch = tensors.grad_k.strides[0];
  arguments.grad_k_row = tensors.grad_k.strides[1];
  arguments.grad_k_head = tensors.grad_k.strides[2];
  arguments.grad_v = tensors.grad_v.data;
  arguments.grad_v_batch = tensors.grad_v.strides[0];
  arguments.grad_v_row = tensors.grad_v.strides[1];
  arguments.grad_v_head = tensors.grad_v.strides[2];
  arguments.float32_gradients = tensors.grad_k.dtype == DType::f32;
}

template <class Shape>
ColumnArguments column_arguments(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                                 const TileChoice& choice, const KernelExecution& execution, int* next_item) {
  const Problem& problem = plan.problem();
  const DevicePlan& on_device = PlanAccess::device(plan);
  ColumnArguments arguments{};
  set_outputs(arguments, tensors);
  arguments.statistics = workspace.rows;
  arguments.lse = lse_view(problem, tensors);
  arguments.query_sums = workspace.query_sums;
  arguments.query_length = static_cast<int>(problem.query_length);
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.kv_heads = static_cast<int>(problem.kv_heads);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  arguments.head_dim = static_cast<int>(problem.head_dim);
  arguments.value_dim = static_cast<int>(problem.value_dim);
  const ScoreArguments score = score_arguments(problem, execution, {}, tensors.alibi, tensors.bias);
  arguments.scale = score.scale;
  arguments.scale_log2 = AddsBias<Shape> ? score.bias.product_log2 : score.scale_log2;
  arguments.dropout = score.dropout;
  arguments.alibi = score.alibi;
  arguments.bias = score.bias;
  arguments.softcap = softcap_arguments(problem);
  const DeviceMap& map = on_device.map(kTile<Shape>, MapSide::columns);
  arguments.map = map_view(map, plan);
  arguments.columns = {static_cast<int>(problem.batch * problem.kv_heads),
                       key_heads_in_section(problem, kColumnSectionBytes), arguments.map.outer_tiles};
  arguments.rows = {arguments.columns.heads * arguments.head_ratio,
                    arguments.columns.side_by_side * arguments.head_ratio,
                    static_cast<int>(workspace.rows.padded / Shape::kRows)};
  if constexpr (Shape::kLeavesOut) {
    static_assert(kFusedTile.rows == Shape::kRows && kFusedTile.columns * Shape::kGroups == Shape::kColumns);
    const DeviceMap* const small = on_device.find(kFusedTile, MapSide::columns);
    if (small != nullptr && small->words != nullptr && !arguments.map.visit_all)
      arguments.halves = map_view(*small, plan);
  }
  const bool knows_visits = !arguments.map.visit_all && arguments.map.inner_tiles > 0;
  arguments.visits = {knows_visits ? map.spans : DeviceRowSpans{}, arguments.map.inner_tiles,
                      arguments.map.outer_tiles};
  arguments.mask = mask_view(on_device.mask);
  int* const added = workspace.bundles();
  arguments.progress = {next_item, workspace.taken_rows(), added,
                        added + arguments.columns.count() * arguments.columns.bundles()};
  arguments.choice = choice;
  arguments.query_units = query_units(plan);
  arguments.key_units = key_units(plan);
  return arguments;
}

template <class Shape>
void launch_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const TileChoice& choice, const KernelExecution& execution, int* next_item) {
  const ColumnArguments arguments = column_arguments<Shape>(plan, tensors, workspace, choice, execution, next_item);
  const CUtensorMap q = make_tensor_map("backward: q", tensors.q, Shape::kRows);
  const CUtensorMap k = make_tensor_map("backward: k", tensors.k, Shape::kColumns);
  const CUtensorMap v = make_tensor_map("backward: v", tensors.v, Shape::kColumns);
  const CUtensorMap grad_o = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows);
  const CUtensorMap o_quarters = make_tensor_map("backward: o", tensors.o, Shape::kRows / 4);
  const CUtensorMap grad_o_quarters = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows / 4);
  const int tiles = std::max(arguments.columns.all_tiles(), arguments.rows.all_tiles());
  const int blocks = std::min(tiles, multiprocessors());
  launch<ColumnMemory<Shape>>("backward: columns", column_kernel<Shape>, blocks, Shape::kThreads,
                              static_cast<cudaStream_t>(execution.stream), q, k, v, grad_o, o_quarters, grad_o_quarters,
                              arguments);
}

}  // namespace flashmask::cuda::sm90
