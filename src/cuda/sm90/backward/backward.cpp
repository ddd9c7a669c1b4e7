// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/backward.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/common/backward_entry.h"
#include "cuda/common/bias_gradient.h"
#include "cuda/common/row_statistics.h"
#include "cuda/common/views.h"
#include "cuda/runtime/device.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/backward/column_arguments.h"
#include "cuda/sm90/backward/column_changing.h"
#include "cuda/sm90/fused/fused.h"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"
#include "cuda/sm90/query_gradient/query_gradient.h"
#include "plan/plan_choice.h"

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

/// Bytes of L2 cache, of 50 to 60 MB, that the queries, the sums for their gradients and the gradients of the output
/// may take for the heads that run side by side (sections.h).
constexpr std::int64_t kColumnSectionBytes = std::int64_t{36} << 20;

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
  arguments.product_log2 = AddsBias<Shape> ? score.bias.product_log2 : score.scale_log2;
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

/// kCompiles: by the kernel that is compiled for the problem's change of scores.
template <class Shape, bool kCompiles = false>
void run_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                 const TileChoice& choice, const KernelExecution& execution, int* next_item) {
  const ColumnArguments arguments = column_arguments<Shape>(plan, tensors, workspace, choice, execution, next_item);
  const ColumnMaps maps{make_tensor_map("backward: q", tensors.q, Shape::kRows),
                        make_tensor_map("backward: k", tensors.k, Shape::kColumns),
                        make_tensor_map("backward: v", tensors.v, Shape::kColumns),
                        make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows),
                        make_tensor_map("backward: o", tensors.o, Shape::kRows / 4),
                        make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows / 4),
                        make_bias_map("backward: bias", plan.problem(), tensors.bias)};
  const int tiles = std::max(arguments.columns.all_tiles(), arguments.rows.all_tiles());
  const int blocks = std::min(tiles, multiprocessors());
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  if constexpr (kCompiles)
    launch_changed_columns<Shape>(plan.problem(), tensors, arguments, maps, blocks, stream);
  else
    launch_columns<Shape>(arguments, maps, blocks, stream);
}

/// Whether a shape's kernel is compiled for changes of scores that have no instance.
template <class Shape>
inline constexpr bool kCompiles = Shape::kSums;

/// Whether a shape has an instance that adds a bias tensor: those with sums.
template <class Shape>
inline constexpr bool kHasAdding = Shape::kSums&& kIsCommon<Shape>;

/// A shape and its instances.
template <class Shape>
using InstancesOf = std::conditional_t<
    kHasAdding<Shape>, Instances<Shape, DroppingColumns<Shape>, Capping<Shape>, Biasing<Shape>, AddingColumns<Shape>>,
    std::conditional_t<kIsCommon<Shape>, Instances<Shape, DroppingColumns<Shape>, Capping<Shape>, Biasing<Shape>>,
                       Instances<Shape, DroppingColumns<Shape>>>>;

/// A backward with a pass over key tiles. The gradient of q is summed in global memory, which blocks add to in any
/// order, or computed by a second pass over row tiles where the shape has no sums. kChooses: where rows are short and
/// scores are plain, the fused kernel does all the work instead. Passes: further passes over key tiles.
template <bool kChooses, class Shape, class... Passes>
struct ColumnSteps {
  static constexpr bool kReadsUnits = !kChooses && !Shape::kSums, kCombines = false;
  static constexpr int kSumsDim = Shape::kSums ? Shape::kHeadDim : 0, kBiasesAbove = kNarrow;

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

  static std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t) {
    if constexpr (kCompiles<Shape>) {
      if (compiles_change(problem)) return {changed_columns_code<Shape>()};
    }
    return {};
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
    if constexpr (Shape::kSums)
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
    const Features compiled = kCompiles<Shape> ? Features{Feature::any_change, Feature::functions} : Features();
    KernelInfo made =
        backward_info<Shape>(kArchitecture, Shape::kForm, {Shape::kHeadDim, Shape::kHeadDim},
                             tile_name<Shape>() + (kChooses ? fused : ""), InstancesOf<Shape>::kFeatures | compiled);
    return Shape::kSums ? made : deterministic(std::move(made), kChooses);
  }

 private:
  static constexpr float kShort = Shape::kSums ? kShortRows : kShortRepeatableRows;

  template <class Pass>
  static void launch_pass(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const TileChoice& choice, const KernelExecution& execution, int* next_item) {
    if constexpr (kCompiles<Pass>) {
      if (compiles_change(plan.problem()))
        return run_columns<Pass, true>(plan, tensors, workspace, choice, execution, next_item);
    }
    InstancesOf<Pass>::with_one_for(plan.problem(), [&](auto name) {
      run_columns<typename decltype(name)::Shape>(plan, tensors, workspace, choice, execution, next_item);
    });
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
  add_entry<ColumnSteps<false, WideKeyColumns<T, kForm, kHeadDim>, WideValueColumns<T, kForm, kHeadDim>>>(entries);
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
