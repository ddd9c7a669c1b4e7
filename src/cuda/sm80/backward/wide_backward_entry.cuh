// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/backward/backward_entry.cuh"
#include "cuda/sm80/backward/wide_gradient_kernel.cuh"

/// Entries of the kernel table for wide heads: one launch per gradient, all of them deterministic.
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
                              score_arguments(problem, execution));
  if (arguments.outer.all_tiles() == 0) return;
  prefer_shared_memory(wide_gradient_kernel<Shape>);
  launch<Memory>("backward: a gradient of wide heads", wide_gradient_kernel<Shape>, arguments.outer.all_tiles(),
                 Shape::kThreads, static_cast<cudaStream_t>(execution.stream), arguments);
}

template <class T>
class WideBackwardEntry final : public KernelEntry<BackwardKernel> {
 public:
  using Queries = WideGradientShape<T, GradientOf::queries>;
  using Keys = WideGradientShape<T, GradientOf::keys>;
  using Values = WideGradientShape<T, GradientOf::values>;

  WideBackwardEntry(const Architecture& architecture, KernelInfo info)
      : KernelEntry(std::move(info), {architecture.capability, false, sizeof(WideGradientMemory<Keys>)}) {}

  std::size_t workspace_bytes(const Problem& problem, int) const override {
    return BackwardWorkspace(problem, 0, nullptr).bytes;
  }

  std::vector<MapRequest> maps() const override {
    return {{kTile<Keys>, MapSide::columns}, {kTile<Queries>, MapSide::rows}};
  }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const CurrentDevice current(problem.device);
    check_tensor_rows(tensors);
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    const BackwardWorkspace workspace(problem, 0, execution.workspace);
    launch_row_statistics(problem, tensors, {}, workspace, Keys::kHeadDim, stream);
    if (PlanAccess::wants_key_gradients(plan)) {
      launch_gradient<Values>(plan, tensors, workspace, execution);
      launch_gradient<Keys>(plan, tensors, workspace, execution);
    }
    if (PlanAccess::wants_query_gradient(plan)) launch_gradient<Queries>(plan, tensors, workspace, execution);
    launch_sink_gradient(problem, tensors, workspace, stream);
  }
};

template <class T, MaskForm kForm>
void add_wide_entry(KernelEntries& entries, const Architecture& architecture) {
  using Entry = WideBackwardEntry<T>;
  using Keys = typename Entry::Keys;
  entries.push_back(std::make_unique<Entry>(
      architecture, info_of<ColumnsOfForm<Keys, kForm>>(
                        architecture, Direction::backward, {Keys::kHeadDim, Keys::kValueDim}, tile_name<Keys>(),
                        {Feature::deterministic, Feature::dropout, Feature::sinks, Feature::float32_key_gradients})));
}

template <class T>
void add_wide_entries(KernelEntries& entries, const Architecture& architecture) {
  add_wide_entry<T, MaskForm::intervals>(entries, architecture);
  add_wide_entry<T, MaskForm::bits>(entries, architecture);
}

}  // namespace flashmask::cuda::sm80
