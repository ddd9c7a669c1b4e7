// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/runtime/device.h"
#include "cuda/sm90/fused/fused.h"
#include "cuda/sm90/fused/fused_kernel.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

/// The numbers of registers are what ptxas needs to avoid spills.
template <class T, MaskForm kForm>
using Shape = FusedShape<T, kForm, kFusedHeadDim, 32, 224>;

/// Long segments keep more of their tiles in shared memory from one position to the next; short ones spread more evenly
/// over the blocks, each of which should get several.
constexpr int kLongestSegment = 16, kSegmentsOfBlock = 8;

/// Shared memory of a multiprocessor; each block takes 1 KB more than it asks for.
constexpr int kMultiprocessorMemory = 228 << 10;

template <class Shape>
void launch_shape(const BackwardTensors& tensors, FusedArguments arguments, cudaStream_t stream) {
  static_assert(Shape::kBlocks * (sizeof(FusedMemory<Shape>) + (1 << 10)) <= kMultiprocessorMemory);
  const int heads = arguments.segments.heads, blocks = multiprocessors() * Shape::kBlocks;
  const auto all = static_cast<std::int64_t>(heads) * arguments.positions;
  arguments.segment_positions =
      static_cast<int>(std::clamp<std::int64_t>(all / (blocks * kSegmentsOfBlock), 1, kLongestSegment));
  arguments.segments.tiles = (arguments.positions + arguments.segment_positions - 1) / arguments.segment_positions;
  const int items = arguments.segments.all_tiles();
  if (items == 0) return;
  const CUtensorMap q = make_tensor_map("backward: q", tensors.q, Shape::kRows);
  const CUtensorMap k = make_tensor_map("backward: k", tensors.k, Shape::kColumns);
  const CUtensorMap v = make_tensor_map("backward: v", tensors.v, Shape::kColumns);
  const CUtensorMap grad_o = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows);
  const CUtensorMap grad_q = make_tensor_map("backward: grad_q", tensors.grad_q, kUnitRows);
  const bool copied = tensors.grad_k.dtype != DType::f32;
  const CUtensorMap grad_k = copied ? make_tensor_map("backward: grad_k", tensors.grad_k, kUnitRows) : CUtensorMap{};
  const CUtensorMap grad_v = copied ? make_tensor_map("backward: grad_v", tensors.grad_v, kUnitRows) : CUtensorMap{};
  launch<FusedMemory<Shape>>("backward: fused", fused_kernel<Shape>, std::min(items, blocks), Shape::kThreads, stream,
                             q, k, v, grad_o, grad_q, grad_k, grad_v, arguments);
}

}  // namespace

template <MaskForm kForm>
void launch_fused(const Plan& plan, const BackwardTensors& tensors, const TileMapView& rows, const TileMapView& columns,
                  const TileChoice& choice, const BackwardWorkspace& workspace, const KernelExecution& execution,
                  int* next_item) {
  const Problem& problem = plan.problem();
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  FusedArguments arguments{};
  arguments.statistics = workspace.rows;
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.kv_heads = static_cast<int>(problem.kv_heads);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  arguments.score = score_arguments(problem, execution);
  if (tensors.grad_k.dtype == DType::f32) {
    arguments.float32_k = output_rows(tensors.grad_k);
    arguments.float32_v = output_rows(tensors.grad_v);
  }
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.head_dim = static_cast<int>(problem.head_dim);
  arguments.value_dim = static_cast<int>(problem.value_dim);
  arguments.positions = std::max(rows.outer_tiles, columns.outer_tiles);
  arguments.segments.heads = static_cast<int>(problem.batch * problem.kv_heads);
  arguments.segments.side_by_side = arguments.kv_heads;  // all of a batch entry, as their rows lie in memory
  arguments.rows = rows;
  arguments.columns = columns;
  arguments.mask = mask_view(PlanAccess::device(plan).mask);
  arguments.next_item = next_item;
  arguments.choice = choice;
  if (problem.dtype == DType::bf16)
    launch_shape<Shape<__nv_bfloat16, kForm>>(tensors, arguments, stream);
  else
    launch_shape<Shape<__half, kForm>>(tensors, arguments, stream);
}

template void launch_fused<MaskForm::intervals>(const Plan&, const BackwardTensors&, const TileMapView&,
                                                const TileMapView&, const TileChoice&, const BackwardWorkspace&,
                                                const KernelExecution&, int*);
template void launch_fused<MaskForm::bits>(const Plan&, const BackwardTensors&, const TileMapView&, const TileMapView&,
                                           const TileChoice&, const BackwardWorkspace&, const KernelExecution&, int*);

}  // namespace flashmask::cuda::sm90
