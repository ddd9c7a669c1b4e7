// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/backward/backward_launch.cuh"
#include "cuda/sm80/backward/wide_gradient_kernel.cuh"

/// The backward of wide heads: one launch per gradient, all of them deterministic.
namespace flashmask::cuda::sm80 {

template <class Shape>
void launch_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                     const KernelExecution& execution) {
  using Memory = WideGradientMemory<Shape>;
  static_assert(sizeof(Memory) <= kLargeSharedBytes);
  const Problem& problem = plan.problem();
  const DevicePlan& made = PlanAccess::device(plan);
  const TileMapView map = map_view(made.map(kTile<Shape>, Shape::kSide), plan);
  const int side_by_side =
      Shape::kByKeys
          ? column_heads_in_section(problem)
          : heads_in_section(problem, static_cast<std::int64_t>(device_facts(problem.device).cache_bytes / 10 * 3));
  const WideGradientArguments arguments =
      wide_gradient_arguments(Shape::kOf, problem, tensors, workspace.rows, map, mask_view(made.mask), side_by_side,
                              score_arguments(problem, execution, {}, tensors.alibi, tensors.bias));
  if (arguments.outer.all_tiles() == 0) return;
  divide_memory<Memory>("backward", wide_gradient_kernel<Shape>, 1, problem);
  launch<Memory>("backward: a gradient of wide heads", wide_gradient_kernel<Shape>, arguments.outer.all_tiles(),
                 Shape::kThreads, static_cast<cudaStream_t>(execution.stream), arguments);
}

template <class T>
struct WideSteps {
  using Queries = WideGradientShape<T, GradientOf::queries>;
  using Keys = WideGradientShape<T, GradientOf::keys>;
  using Values = WideGradientShape<T, GradientOf::values>;
  static constexpr bool kReadsUnits = false, kCombines = true;
  static constexpr int kSumsDim = 0;

  static std::vector<MapRequest> maps() { return {{kTile<Keys>, MapSide::columns}, {kTile<Queries>, MapSide::rows}}; }
  static std::optional<SmallTiles> small_tiles() { return {}; }

  static void launch(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                     const KernelExecution& execution) {
    prepare_rows<Keys, false>(plan, tensors, workspace, execution);
    if (PlanAccess::wants_key_gradients(plan)) {
      launch_gradient<Values>(plan, tensors, workspace, execution);
      launch_gradient<Keys>(plan, tensors, workspace, execution);
    }
    if (PlanAccess::wants_query_gradient(plan)) launch_gradient<Queries>(plan, tensors, workspace, execution);
    launch_bias_gradient(plan, tensors, workspace, execution,
                         PlanAccess::device(plan).map(kTile<Keys>, MapSide::columns));
  }
};

template <class T>
void add_wide_entries(KernelEntries& entries, const Architecture& architecture) {
  using Keys = typename WideSteps<T>::Keys;
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits})
    add_backward_entry<WideSteps<T>>(
        entries,
        backward_info<Keys>(architecture, form, {Keys::kHeadDim, Keys::kValueDim}, tile_name<Keys>(),
                            Features{Feature::deterministic, Feature::invariant} | kInstanceFeatures),
        {architecture.capability, false, sizeof(WideGradientMemory<Keys>)});
}

}  // namespace flashmask::cuda::sm80
