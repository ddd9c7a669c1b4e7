// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "cuda/common/backward_entry.h"
#include "cuda/common/bias_gradient.h"
#include "cuda/common/row_statistics.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/backward/backward.h"
#include "cuda/sm90/backward/column_shapes.cuh"
#include "cuda/sm90/fused/fused.h"
#include "cuda/sm90/query_gradient/query_gradient.h"

namespace flashmask::cuda::sm90 {
namespace {

/// The fused kernel is faster where its row tiles visit fewer than this many tiles on average (docs/kernels/sm90.md).
constexpr float kShortRows = 3.6F, kShortRepeatableRows = 6;

void clear_counters(const BackwardWorkspace& workspace, cudaStream_t stream) {
  check(cudaMemsetAsync(workspace.counters, 0, workspace.counter_count * sizeof(int), stream),
        "backward: clearing the counters");
}

/// Launches the fused kernel for all the work.
template <MaskForm kForm>
void launch_fused_alone(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                        int head_dim, const KernelExecution& execution) {
  launch_row_statistics(plan, tensors, {}, workspace, head_dim, static_cast<cudaStream_t>(execution.stream));
  const DevicePlan& made = PlanAccess::device(plan);
  launch_fused<kForm>(plan, tensors, map_view(made.map(kFusedTile, MapSide::rows), plan),
                      map_view(made.map(kFusedTile, MapSide::columns), plan), {}, workspace, execution,
                      workspace.counters);
}

/// A backward with a pass over key tiles. The gradient of q is summed in global memory, which blocks add to in any
/// order, or computed by a second pass over row tiles where the shape has no sums. kChooses: where rows are short and
/// scores are plain, the fused kernel does all the work instead. Passes: further passes over key tiles.
template <bool kChooses, class Shape, class... Passes>
struct ColumnSteps {
  static constexpr bool kReadsUnits = !kChooses && !Shape::kSums, kCombines = false;
  static constexpr int kSumsDim = Shape::kSums ? Shape::kHeadDim : 0, kBiasesAbove = kNarrow;

  static constexpr Features kFeatures =
      Features{Feature::dropout} | (kHasCapping<Shape> ? Features{Feature::softcap} : Features()) |
      (kHasBiasing<Shape> ? Features{Feature::alibi} | kAddedBiases<Shape> : Features());

  static std::vector<MapRequest> maps() {
    std::vector<MapRequest> all = {{.tile = kTile<Shape>, .side = MapSide::columns, .spans = Shape::kSums}};
    if constexpr (!Shape::kSums) all.push_back({query_gradient_tile(Shape::kHeadDim), MapSide::rows});
    if constexpr (kChooses) {
      all.push_back({.tile = kFusedTile, .side = MapSide::rows, .counted = true, .most_bytes = kMostChoiceBytes});
      all.push_back({.tile = kFusedTile, .side = MapSide::columns, .most_bytes = kMostChoiceBytes});
    }
    return all;
  }

  static std::optional<SmallTiles> small_tiles() {
    if constexpr (!kChooses) return {};
    return SmallTiles{kTile<Shape>, kFusedTile, 0, kShort, kFusedTile, kMostChoiceBytes, true};
  }

  static void launch(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                     const KernelExecution& execution) {
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    clear_counters(workspace, stream);
    if constexpr (kChooses) {
      if (size_of(plan) == TileSize::small && has_plain_scores(plan.problem()))
        return launch_fused_alone<Shape::kForm>(plan, tensors, workspace, Shape::kHeadDim, execution);
    }
    if constexpr (!Shape::kSums) launch_row_statistics(plan, tensors, {}, workspace, Shape::kHeadDim, stream);
    TileChoice choice = choice_of(plan);
    int* next_item = workspace.counters;
    if (Shape::kSums || PlanAccess::wants_key_gradients(plan)) {
      launch_pass<Shape>(plan, tensors, workspace, choice, execution, next_item);
      (launch_pass<Passes>(plan, tensors, workspace, choice, execution, ++next_item), ...);
    }
    const DevicePlan& made = PlanAccess::device(plan);
    if constexpr (kHasBiasing<Shape>)
      launch_bias_gradient(plan, tensors, workspace, execution, made.map(kTile<Shape>, MapSide::columns));
    if constexpr (!Shape::kSums) {
      const DeviceMap& rows = made.map(query_gradient_tile(Shape::kHeadDim), MapSide::rows);
      if (PlanAccess::wants_query_gradient(plan))
        launch_query_gradient<Shape::kForm>(plan, tensors, rows, choice, workspace, Shape::kHeadDim, execution,
                                            ++next_item);
    }
    if (choice.visited_small != nullptr) {
      choice.small = true;
      if constexpr (Shape::kSums) launch_row_statistics(plan, tensors, choice, workspace, Shape::kHeadDim, stream);
      launch_fused<Shape::kForm>(plan, tensors, map_view(made.map(kFusedTile, MapSide::rows), plan),
                                 map_view(made.map(kFusedTile, MapSide::columns), plan), choice, workspace, execution,
                                 ++next_item);
    }
  }

  static KernelInfo info() {
    const std::string fused = "+m" + std::to_string(kFusedTile.rows) + "n" + std::to_string(kFusedTile.columns);
    KernelInfo made = backward_info<Shape>(kArchitecture, Shape::kForm, {Shape::kHeadDim, Shape::kHeadDim},
                                           tile_name<Shape>() + (kChooses ? fused : ""), kFeatures);
    return Shape::kSums ? made : deterministic(std::move(made), kChooses);
  }

 private:
  static constexpr float kShort = Shape::kSums ? kShortRows : kShortRepeatableRows;

  template <class Pass>
  static void launch_pass(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const TileChoice& choice, const KernelExecution& execution, int* next_item) {
    auto pass = has_dropout(plan.problem()) ? launch_columns<typename WithDropout<Pass>::Type> : launch_columns<Pass>;
    if constexpr (kHasCapping<Pass>) {
      if (plan.problem().change.cap() > 0) pass = launch_columns<Capping<Pass>>;
    }
    if constexpr (kHasBiasing<Pass>) {
      if (plan.problem().change.bias() == ScoreBias::alibi) pass = launch_columns<Biasing<Pass>>;
      if (has_bias_tensor(plan.problem())) pass = launch_columns<Adding<Pass>>;
    }
    pass(plan, tensors, workspace, choice, execution, next_item);
  }

  /// Returns the tile size to use; without maps of small tiles it is always large.
  static TileSize size_of(const Plan& plan) {
    const DevicePlan& made = PlanAccess::device(plan);
    const bool has_maps =
        made.map(kFusedTile, MapSide::rows).words != nullptr && made.map(kFusedTile, MapSide::columns).words != nullptr;
    return has_maps ? PlanAccess::tiles(plan, Direction::backward) : TileSize::large;
  }

  /// Returns what the device chooses by; empty where the choice is already made.
  static TileChoice choice_of(const Plan& plan) {
    if constexpr (kChooses) {
      if (size_of(plan) != TileSize::automatic || !has_plain_scores(plan.problem())) return {};
      const DeviceMap& rows = PlanAccess::device(plan).map(kFusedTile, MapSide::rows);
      const auto row_tiles = static_cast<float>(map_view(rows, plan).all_outer_tiles());
      return {nullptr, rows.visited, 0, row_tiles * kShort, false};
    }
    return {};
  }
};

/// The backward by the fused kernel alone.
template <class T, MaskForm kForm>
struct FusedSteps {
  static constexpr bool kReadsUnits = false, kCombines = false;
  static constexpr int kSumsDim = 0;

  static std::vector<MapRequest> maps() { return {{kFusedTile, MapSide::rows}, {kFusedTile, MapSide::columns}}; }
  static std::optional<SmallTiles> small_tiles() { return {}; }

  static void launch(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                     const KernelExecution& execution) {
    clear_counters(workspace, static_cast<cudaStream_t>(execution.stream));
    launch_fused_alone<kForm>(plan, tensors, workspace, kFusedHeadDim, execution);
  }

  static KernelInfo info() {
    return deterministic(
        backward_info<Shape>(kArchitecture, kForm, {kFusedHeadDim, kFusedHeadDim}, tile_name<Shape>(), {}));
  }

 private:
  /// What the entry's name and its KernelInfo need of a shape.
  struct Shape {
    using Element = T;
    static constexpr int kRows = static_cast<int>(kFusedTile.rows), kColumns = static_cast<int>(kFusedTile.columns);
  };
};

template <class Steps>
void add_entry(KernelEntries& entries) {
  add_backward_entry<Steps>(entries, Steps::info(), {kArchitecture.capability, true});
}

template <class T, MaskForm kForm, int kHeadDim>
void add_wide_entry(KernelEntries& entries) {
  add_entry<ColumnSteps<false, WideKeys<T, kForm, kHeadDim>, WideValues<T, kForm, kHeadDim>>>(entries);
}

/// Adds the entry that chooses, and one with the kernel over key tiles alone, for callers that ask for it by name.
template <class Shape>
void add_choosing_entries(KernelEntries& entries) {
  add_entry<ColumnSteps<true, Shape>>(entries);
  add_entry<ColumnSteps<false, Shape>>(entries);
}

template <class T, MaskForm kForm>
void add_entries(KernelEntries& entries) {
  add_entry<ColumnSteps<false, Columns64<T, kForm>>>(entries);
  add_choosing_entries<Columns128<T, kForm>>(entries);
  add_entry<ColumnSteps<false, CarriedColumns64<T, kForm>>>(entries);
  add_choosing_entries<CarriedColumns128<T, kForm>>(entries);
  add_entry<FusedSteps<T, kForm>>(entries);
  add_wide_entry<T, kForm, 192>(entries);
  add_wide_entry<T, kForm, 256>(entries);
}

}  // namespace

KernelEntries backward_kernels() {
  KernelEntries entries;
  add_entries<__nv_bfloat16, MaskForm::intervals>(entries);
  add_entries<__nv_bfloat16, MaskForm::bits>(entries);
  add_entries<__half, MaskForm::intervals>(entries);
  add_entries<__half, MaskForm::bits>(entries);
  return entries;
}

}  // namespace flashmask::cuda::sm90
