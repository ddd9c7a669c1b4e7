#include <algorithm>
#include <string>

#include "cuda/common/kernel_row.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_checks.h"
#include "cuda/common/row_statistics.h"
#include "cuda/common/sink_gradient.h"
#include "cuda/runtime/device.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/backward/backward.h"
#include "cuda/sm90/backward/column_kernel.cuh"
#include "cuda/sm90/fused/fused.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/query_gradient/query_gradient.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

/// What queries, their gradients and those of the output of heads that run side by side (sections.h) may take of an L2
/// cache of 50 to 60 MB.
constexpr std::int64_t kSectionBytes = std::int64_t{36} << 20;

/// The fused kernel is the faster one where its row tiles visit at most so many tiles on average
/// (docs/kernels/sm90.md).
constexpr float kShortRows = 3.6F, kShortRepeatableRows = 6;

KernelInfo named(KernelInfo info, bool deterministic) {
  if (!deterministic) return info;
  info.features.add(Feature::deterministic);
  info.name += ".deterministic";
  return info;
}

int heads_in_section(const Problem& problem) {
  const std::int64_t of_row = problem.head_dim * (2 + 4) + problem.value_dim * 2;
  const std::int64_t bytes = problem.query_heads / problem.kv_heads * problem.query_length * of_row;
  const std::int64_t heads = kSectionBytes / std::max<std::int64_t>(bytes, 1);
  return static_cast<int>(
      std::clamp<std::int64_t>(heads, 1, std::max<std::int64_t>(problem.batch * problem.kv_heads, 1)));
}

/// Where the gradients go.
void set_outputs(ColumnArguments& arguments, const BackwardTensors& tensors) {
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
ColumnArguments arguments_of(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                             const TileChoice& choice, int* next_item) {
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
  arguments.scale = problem.softmax_scale();
  arguments.scale_log2 = problem.softmax_scale() * 1.44269504088896F;
  const DeviceMap& map = on_device.map(kTile<Shape>, MapSide::columns);
  arguments.map = map_view(map, plan);
  arguments.columns = {static_cast<int>(problem.batch * problem.kv_heads), heads_in_section(problem),
                       arguments.map.outer_tiles};
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
  return arguments;
}

template <class Shape>
void launch_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const TileChoice& choice, int* next_item, cudaStream_t stream) {
  const ColumnArguments arguments = arguments_of<Shape>(plan, tensors, workspace, choice, next_item);
  const CUtensorMap q = make_tensor_map("backward: q", tensors.q, Shape::kRows);
  const CUtensorMap k = make_tensor_map("backward: k", tensors.k, Shape::kColumns);
  const CUtensorMap v = make_tensor_map("backward: v", tensors.v, Shape::kColumns);
  const CUtensorMap grad_o = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows);
  const CUtensorMap o_quarters = make_tensor_map("backward: o", tensors.o, Shape::kRows / 4);
  const CUtensorMap grad_o_quarters = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows / 4);
  const int tiles = std::max(arguments.columns.all_tiles(), arguments.rows.all_tiles());
  const int blocks = std::min(tiles, multiprocessors());
  launch<ColumnMemory<Shape>>("backward: columns", column_kernel<Shape>, blocks, Shape::kThreads, stream, q, k, v,
                              grad_o, o_quarters, grad_o_quarters, arguments);
}

void check_tensor_rows(const BackwardTensors& tensors) {
  check_rows("backward: o", tensors.o);
  check_rows("backward: grad_o", tensors.grad_o);
  check_rows("backward: grad_q", tensors.grad_q);
  check_rows("backward: grad_k", tensors.grad_k);
  check_rows("backward: grad_v", tensors.grad_v);
}

void clear_counters(const BackwardWorkspace& workspace, cudaStream_t stream) {
  check(cudaMemsetAsync(workspace.counters, 0, workspace.counter_count * sizeof(int), stream),
        "backward: clearing the counters");
}

/// The fused kernel, which does all the work.
template <MaskForm kForm>
void launch_fused_alone(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                        int head_dim, cudaStream_t stream) {
  launch_row_statistics(plan.problem(), tensors, {}, workspace, head_dim, stream);
  const DevicePlan& made = PlanAccess::device(plan);
  launch_fused<kForm>(plan, tensors, map_view(made.map(kFusedTile, MapSide::rows), plan),
                      map_view(made.map(kFusedTile, MapSide::columns), plan), {}, workspace, workspace.counters,
                      stream);
  launch_sink_gradient(plan.problem(), tensors, workspace, stream);
}

/// A pass over key tiles, and for the gradient of q sums in global memory that blocks add to in any order or, where the
/// shape has none, a second pass over row tiles. kChooses: where rows are short, the fused kernel does all the work
/// instead. Passes: further ones over key tiles.
template <bool kChooses, class Shape, class... Passes>
class Row final : public KernelRow<BackwardKernel> {
 public:
  Row() : KernelRow(named(info(), !Shape::kSums)) {}

  std::size_t workspace_bytes(const Problem& problem, int) const override {
    return BackwardWorkspace(problem, kSumsDim, nullptr).bytes;
  }

  std::vector<MapRequest> maps() const override {
    std::vector<MapRequest> all = {{.tile = kTile<Shape>, .side = MapSide::columns, .spans = Shape::kSums}};
    if constexpr (!Shape::kSums) all.push_back({query_gradient_tile(Shape::kHeadDim), MapSide::rows});
    if constexpr (kChooses) {
      all.push_back({.tile = kFusedTile, .side = MapSide::rows, .counted = true, .most_bytes = kMostChoiceBytes});
      all.push_back({.tile = kFusedTile, .side = MapSide::columns, .most_bytes = kMostChoiceBytes});
    }
    return all;
  }

  std::optional<SmallTiles> small_tiles() const override {
    if constexpr (!kChooses) return {};
    return SmallTiles{kTile<Shape>, kFusedTile, 0, kShort, kFusedTile, kMostChoiceBytes, true};
  }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const CurrentDevice current(problem.device);
    check_tensor_rows(tensors);
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    const BackwardWorkspace workspace(problem, kSumsDim, execution.workspace);
    clear_counters(workspace, stream);
    if constexpr (kChooses) {
      if (size_of(plan) == TileSize::small)
        return launch_fused_alone<Shape::kForm>(plan, tensors, workspace, Shape::kHeadDim, stream);
    }
    if constexpr (!Shape::kSums) launch_row_statistics(problem, tensors, {}, workspace, Shape::kHeadDim, stream);
    TileChoice choice = choice_of(plan);
    int* next_item = workspace.counters;
    launch_columns<Shape>(plan, tensors, workspace, choice, next_item, stream);
    (launch_columns<Passes>(plan, tensors, workspace, choice, ++next_item, stream), ...);
    const DevicePlan& made = PlanAccess::device(plan);
    if constexpr (!Shape::kSums) {
      const DeviceMap& rows = made.map(query_gradient_tile(Shape::kHeadDim), MapSide::rows);
      launch_query_gradient<Shape::kForm>(plan, tensors, rows, choice, workspace, Shape::kHeadDim, ++next_item, stream);
    }
    if (choice.visited_small != nullptr) {
      choice.small = true;
      if constexpr (Shape::kSums) launch_row_statistics(problem, tensors, choice, workspace, Shape::kHeadDim, stream);
      launch_fused<Shape::kForm>(plan, tensors, map_view(made.map(kFusedTile, MapSide::rows), plan),
                                 map_view(made.map(kFusedTile, MapSide::columns), plan), choice, workspace, ++next_item,
                                 stream);
    }
    launch_sink_gradient(problem, tensors, workspace, stream);
  }

 private:
  static constexpr int kSumsDim = Shape::kSums ? Shape::kHeadDim : 0;
  static constexpr float kShort = Shape::kSums ? kShortRows : kShortRepeatableRows;

  static KernelInfo info() {
    const std::string fused = "+m" + std::to_string(kFusedTile.rows) + "n" + std::to_string(kFusedTile.columns);
    return info_of<Shape>(kArchitecture, Direction::backward, {Shape::kHeadDim, Shape::kHeadDim},
                          tile_name<Shape>() + (kChooses ? fused : ""),
                          {Feature::sinks, Feature::float32_key_gradients});
  }

  /// Without maps of small tiles there is no choice.
  static TileSize size_of(const Plan& plan) {
    const DevicePlan& made = PlanAccess::device(plan);
    const bool has_maps =
        made.map(kFusedTile, MapSide::rows).words != nullptr && made.map(kFusedTile, MapSide::columns).words != nullptr;
    return has_maps ? PlanAccess::tiles(plan, Direction::backward) : TileSize::large;
  }

  /// Nothing where the choice is made already.
  static TileChoice choice_of(const Plan& plan) {
    if constexpr (kChooses) {
      if (size_of(plan) != TileSize::automatic) return {};
      const DeviceMap& rows = PlanAccess::device(plan).map(kFusedTile, MapSide::rows);
      const auto row_tiles = static_cast<float>(map_view(rows, plan).all_outer_tiles());
      return {nullptr, rows.visited, 0, row_tiles * kShort, false};
    }
    return {};
  }
};

/// What the name of the fused kernel is made of.
template <class T, MaskForm kForm_>
struct FusedKernel {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kFusedHeadDim, kRows = static_cast<int>(kFusedTile.rows),
                       kColumns = static_cast<int>(kFusedTile.columns);
};

/// The fused kernel alone.
template <class Shape>
class FusedRow final : public KernelRow<BackwardKernel> {
 public:
  FusedRow() : KernelRow(named(info(), true)) {}

  std::size_t workspace_bytes(const Problem& problem, int) const override {
    return BackwardWorkspace(problem, 0, nullptr).bytes;
  }

  std::vector<MapRequest> maps() const override {
    return {{kFusedTile, MapSide::rows}, {kFusedTile, MapSide::columns}};
  }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const CurrentDevice current(problem.device);
    check_tensor_rows(tensors);
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    const BackwardWorkspace workspace(problem, 0, execution.workspace);
    clear_counters(workspace, stream);
    launch_fused_alone<Shape::kForm>(plan, tensors, workspace, Shape::kHeadDim, stream);
  }

 private:
  static KernelInfo info() {
    return info_of<Shape>(kArchitecture, Direction::backward, {Shape::kHeadDim, Shape::kHeadDim}, tile_name<Shape>(),
                          {Feature::sinks, Feature::float32_key_gradients});
  }
};

/// Wide heads: the gradients of k and v take a pass each.
template <class T, MaskForm kForm, int kHeadDim>
void add_wide_row(KernelRows& rows) {
  using Keys = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, true, false>;
  using Values = CarriedColumnShape<T, kForm, kHeadDim, 64, 2, false, true>;
  rows.push_back(std::make_unique<Row<false, Keys, Values>>());
}

/// The row that chooses, and the kernel over key tiles alone, to be asked for by name.
template <class Shape>
void add_choosing_rows(KernelRows& rows) {
  rows.push_back(std::make_unique<Row<true, Shape>>());
  rows.push_back(std::make_unique<Row<false, Shape>>());
}

template <class T, MaskForm kForm>
void add_rows(KernelRows& rows) {
  rows.push_back(std::make_unique<Row<false, ColumnShape<T, kForm, 64, 128, false, true, 24, 240>>>());
  add_choosing_rows<ColumnShape<T, kForm, 128, 64, true, true, 24, 240>>(rows);
  rows.push_back(std::make_unique<Row<false, CarriedColumnShape<T, kForm, 64, 128, 2>>>());
  add_choosing_rows<CarriedColumnShape<T, kForm, 128, 64, 3>>(rows);
  rows.push_back(std::make_unique<FusedRow<FusedKernel<T, kForm>>>());
  add_wide_row<T, kForm, 192>(rows);
  add_wide_row<T, kForm, 256>(rows);
}

}  // namespace

KernelRows backward_kernels() {
  KernelRows rows;
  add_rows<__nv_bfloat16, MaskForm::intervals>(rows);
  add_rows<__nv_bfloat16, MaskForm::bits>(rows);
  add_rows<__half, MaskForm::intervals>(rows);
  add_rows<__half, MaskForm::bits>(rows);
  return rows;
}

}  // namespace flashmask::cuda::sm90
