// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_checks.h"
#include "cuda/common/row_statistics.h"
#include "cuda/common/sink_gradient.h"
#include "cuda/common/tile_choice.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/backward/backward.h"
#include "cuda/sm80/backward/close_rows.cuh"
#include "cuda/sm80/backward/column_kernel.cuh"
#include "cuda/sm80/backward/shapes.cuh"
#include "plan/plan_choice.h"

/// Entries of the kernel table: either a launch over key tiles that also sums the gradient of q and one that closes the
/// sums, or one without sums and one over row tiles, which is deterministic.
namespace flashmask::cuda::sm80 {

inline void check_tensor_rows(const BackwardTensors& tensors) {
  check_rows("backward: q", tensors.q);
  check_rows("backward: k", tensors.k);
  check_rows("backward: v", tensors.v);
  check_rows("backward: o", tensors.o);
  check_rows("backward: grad_o", tensors.grad_o);
  check_rows("backward: grad_q", tensors.grad_q);
  check_rows("backward: grad_k", tensors.grad_k);
  check_rows("backward: grad_v", tensors.grad_v);
}

/// Returns how many key heads run side by side: as many as keep their queries, query sums and output gradients within
/// 6/10 of the L2 cache.
inline int column_heads_in_section(const Problem& problem) {
  const std::int64_t of_row = problem.head_dim * (2 + 4) + problem.value_dim * 2;
  const std::int64_t bytes = problem.query_heads / problem.kv_heads * problem.query_length * of_row;
  const auto cache = static_cast<std::int64_t>(device_facts(problem.device).cache_bytes);
  return static_cast<int>(std::clamp<std::int64_t>(cache / 10 * 6 / std::max<std::int64_t>(bytes, 1), 1,
                                                   std::max<std::int64_t>(problem.batch * problem.kv_heads, 1)));
}

template <class Shape>
ColumnArguments column_arguments(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                                 const KernelExecution& execution, const TileChoice& choice) {
  const Problem& problem = plan.problem();
  const DevicePlan& made = PlanAccess::device(plan);
  const TileMapView map = map_view(made.map(kTile<Shape>, MapSide::columns), plan);
  return {.q = tensor_rows(tensors.q),
          .k = tensor_rows(tensors.k),
          .v = tensor_rows(tensors.v),
          .grad_o = tensor_rows(tensors.grad_o),
          .grad_k = output_rows(tensors.grad_k),
          .grad_v = output_rows(tensors.grad_v),
          .float32_gradients = tensors.grad_k.dtype == DType::f32,
          .statistics = workspace.rows,
          .query_sums = workspace.query_sums,
          .key_length = static_cast<int>(problem.key_length),
          .query_heads = static_cast<int>(problem.query_heads),
          .kv_heads = static_cast<int>(problem.kv_heads),
          .head_dim = static_cast<int>(problem.head_dim),
          .value_dim = static_cast<int>(problem.value_dim),
          .head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads),
          .score = score_arguments(problem, execution),
          .columns = {static_cast<int>(problem.batch * problem.kv_heads), column_heads_in_section(problem),
                      map.outer_tiles},
          .map = map,
          .choice = choice,
          .mask = mask_view(made.mask)};
}

/// Asks for as much shared memory as there is, so that as many blocks fit as registers allow.
template <class Kernel>
void prefer_shared_memory(Kernel kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "backward: shared memory");
}

template <class Shape>
auto column_kernel_of(const Problem& problem) {
  auto kernel = column_kernel<Shape>;
  if constexpr (!Shape::kForm.short_rows) {
    if (has_dropout(problem)) kernel = column_kernel<Dropping<Shape>>;
  }
  return kernel;
}

template <class Shape>
void launch_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const KernelExecution& execution, const TileChoice& choice) {
  const ColumnArguments arguments = column_arguments<Shape>(plan, tensors, workspace, execution, choice);
  const int items = arguments.columns.all_tiles();
  if (items == 0) return;
  const auto kernel = column_kernel_of<Shape>(plan.problem());
  prefer_shared_memory(kernel);
  launch<ColumnMemory<Shape>>("backward: columns", kernel, items, Shape::kThreads,
                              static_cast<cudaStream_t>(execution.stream), arguments);
}

template <class Shape>
void launch_closing(const Problem& problem, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const TileChoice& choice, cudaStream_t stream) {
  const ClosingArguments arguments{.query_sums = workspace.query_sums,
                                   .grad_q = output_rows(tensors.grad_q),
                                   .query_length = static_cast<int>(problem.query_length),
                                   .query_heads = static_cast<int>(problem.query_heads),
                                   .head_dim = static_cast<int>(problem.head_dim),
                                   .parts = static_cast<int>(workspace.rows.padded / Shape::kPartRows),
                                   .scale = problem.softmax_scale(),
                                   .choice = choice};
  const int blocks = static_cast<int>(problem.batch * problem.query_heads) * arguments.parts;
  if (blocks == 0) return;
  close_rows_kernel<Shape><<<static_cast<unsigned>(blocks), Shape::kThreads, 0, stream>>>(arguments);
  check(cudaGetLastError(), "backward: closing rows");
}

/// Computes the gradients of k and v, and that of q where it comes from sums. Roomy: the shape for devices with enough
/// shared memory for it.
template <class Shape, class Roomy>
void pass_over_keys(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const KernelExecution& execution, const TileChoice& choice = {}) {
  const bool roomy = device_facts(plan.problem().device).block_shared_bytes >= sizeof(ColumnMemory<Roomy>);
  const auto launch_own = roomy ? launch_columns<Roomy> : launch_columns<Shape>;
  launch_own(plan, tensors, workspace, execution, choice);
  if (workspace.query_sums != nullptr)
    launch_closing<Shape>(plan.problem(), tensors, workspace, choice, static_cast<cudaStream_t>(execution.stream));
}

template <class Shape>
void launch_rows(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                 const KernelExecution& execution) {
  const Problem& problem = plan.problem();
  QueryGradientArguments arguments{};
  static_cast<RowArguments&>(arguments) = row_arguments(plan, PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows),
                                                        score_arguments(problem, execution), nullptr);
  arguments.section_heads =
      heads_in_section(problem, static_cast<std::int64_t>(device_facts(problem.device).cache_bytes / 10 * 3));
  arguments.q = tensor_rows(tensors.q);
  arguments.k = tensor_rows(tensors.k);
  arguments.v = tensor_rows(tensors.v);
  arguments.grad_o = tensor_rows(tensors.grad_o);
  arguments.grad_q = output_rows(tensors.grad_q);
  arguments.statistics = workspace.rows;
  arguments.head_dim = static_cast<int>(problem.head_dim);
  if (arguments.items == 0) return;
  const auto kernel = has_dropout(problem) ? query_gradient_kernel<Dropping<Shape>> : query_gradient_kernel<Shape>;
  prefer_shared_memory(kernel);
  launch<QueryGradientMemory<Shape>>("backward: the gradient of q", kernel, arguments.items, Shape::kThreads,
                                     static_cast<cudaStream_t>(execution.stream), arguments);
}

/// Stands in for the shape of a second pass, where the first one makes sums.
struct NoRows {};

/// Roomy…: shapes for devices with enough shared memory for them. They have the same tiles, and the same order of sums.
template <class Columns, class RoomyColumns, class Rows, class RoomyRows>
class BackwardEntry : public KernelEntry<BackwardKernel> {
  static constexpr bool kSums = std::is_same_v<Rows, NoRows>;
  static constexpr int kSumsDim = kSums ? Columns::kHeadDim : 0;

 public:
  BackwardEntry(const Architecture& architecture, KernelInfo info, std::size_t shared_bytes)
      : KernelEntry(std::move(info), {architecture.capability, false, shared_bytes}) {}

  std::size_t workspace_bytes(const Problem& problem, int) const override {
    return BackwardWorkspace(problem, kSumsDim, nullptr).bytes;
  }

  std::vector<MapRequest> maps() const override {
    std::vector<MapRequest> all = {{kTile<Columns>, MapSide::columns}};
    if constexpr (!kSums) all.push_back({kTile<Rows>, MapSide::rows});
    return all;
  }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const CurrentDevice current(problem.device);
    check_tensor_rows(tensors);
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    const BackwardWorkspace workspace(problem, kSumsDim, execution.workspace);
    constexpr int kStatisticsDim = Columns::kHeadDim == 96 ? 128 : Columns::kHeadDim;
    launch_row_statistics(problem, tensors, {}, workspace, kStatisticsDim, stream);
    if constexpr (kSums) clear_sums(problem, workspace, stream);
    if (kSums || PlanAccess::wants_key_gradients(plan)) run_columns(plan, tensors, workspace, execution);
    if constexpr (!kSums) {
      if (PlanAccess::wants_query_gradient(plan)) run_rows(plan, tensors, workspace, execution);
    }
    launch_sink_gradient(problem, tensors, workspace, stream);
  }

 private:
  virtual void run_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                           const KernelExecution& execution) const {
    pass_over_keys<Columns, RoomyColumns>(plan, tensors, workspace, execution);
  }

  static void run_rows(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                       const KernelExecution& execution) {
    const bool roomy = device_facts(plan.problem().device).block_shared_bytes >= sizeof(QueryGradientMemory<RoomyRows>);
    const auto pass = roomy ? launch_rows<RoomyRows> : launch_rows<Rows>;
    pass(plan, tensors, workspace, execution);
  }

  static void clear_sums(const Problem& problem, const BackwardWorkspace& workspace, cudaStream_t stream) {
    const auto rows = static_cast<std::size_t>(problem.batch * problem.query_heads * workspace.rows.padded);
    check(cudaMemsetAsync(workspace.query_sums, 0, rows * Columns::kHeadDim * sizeof(float), stream),
          "backward: clearing the sums");
  }
};

/// An entry that takes small tiles where rows are short.
template <class Columns, class RoomyColumns, class Short>
class ChoosingBackwardEntry final : public BackwardEntry<Columns, RoomyColumns, NoRows, NoRows> {
  using Base = BackwardEntry<Columns, RoomyColumns, NoRows, NoRows>;

 public:
  ChoosingBackwardEntry(const Architecture& architecture, KernelInfo info, std::size_t shared_bytes,
                        const WhenSmall& when)
      : Base(architecture, std::move(info), shared_bytes),
        tiles_(Direction::backward, MapSide::columns, kTile<Columns>, kTile<Short>, kTile<Short>, when,
               shared_of_blocks(sizeof(ColumnMemory<Short>), Short::kBlocks)) {}

  std::vector<MapRequest> maps() const override { return tiles_.maps(); }
  std::optional<SmallTiles> small_tiles() const override { return tiles_.small_tiles(); }

 private:
  void run_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                   const KernelExecution& execution) const override {
    const TileSize size = tiles_.size(plan);
    if (size != TileSize::small)
      pass_over_keys<Columns, RoomyColumns>(plan, tensors, workspace, execution, choice(plan, size, false));
    if (size != TileSize::large)
      pass_over_keys<Short, Short>(plan, tensors, workspace, execution, choice(plan, size, true));
  }

  TileChoice choice(const Plan& plan, TileSize size, bool small) const {
    return size == TileSize::automatic ? tiles_.choice(plan, small) : TileChoice{};
  }

  TwoTiles tiles_;
};

/// A shape with one form of masks: a kernel reads both forms, and has an entry of the kernel table for each.
template <class Shape, MaskForm kForm_>
struct ColumnsOfForm {
  using Element = typename Shape::Element;
  static constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns;
  static constexpr MaskForm kForm = kForm_;
};

template <class Columns, MaskForm kForm>
KernelInfo backward_info(const Architecture& architecture, const std::string& tiles) {
  Features features{Feature::sinks, Feature::float32_key_gradients};
  if (!Columns::kForm.short_rows) features.add(Feature::dropout);
  return info_of<ColumnsOfForm<Columns, kForm>>(architecture, Direction::backward,
                                                {Columns::kHeadDim, Columns::kHeadDim}, tiles, features);
}

template <class Columns, class RoomyColumns, class Rows, class RoomyRows, MaskForm kForm>
void add_entries_of(KernelEntries& entries, const Architecture& architecture) {
  KernelInfo info = backward_info<Columns, kForm>(architecture, tile_name<Columns>());
  constexpr std::size_t kColumnBytes = sizeof(ColumnMemory<Columns>), kRowBytes = sizeof(QueryGradientMemory<Rows>);
  entries.push_back(
      std::make_unique<BackwardEntry<Columns, RoomyColumns, NoRows, NoRows>>(architecture, info, kColumnBytes));
  info.features.add(Feature::deterministic);
  info.name += ".deterministic";
  entries.push_back(std::make_unique<BackwardEntry<Columns, RoomyColumns, Rows, RoomyRows>>(
      architecture, std::move(info), std::max(kColumnBytes, kRowBytes)));
}

template <class Columns, class RoomyColumns, class Rows, class RoomyRows>
void add_entries(KernelEntries& entries, const Architecture& architecture) {
  add_entries_of<Columns, RoomyColumns, Rows, RoomyRows, MaskForm::intervals>(entries, architecture);
  add_entries_of<Columns, RoomyColumns, Rows, RoomyRows, MaskForm::bits>(entries, architecture);
}

/// Adds the entry that chooses between both tiles, and that of short rows alone, to be requested by name.
template <class Columns, class RoomyColumns, class Short, MaskForm kForm>
void add_choosing_entries_of(KernelEntries& entries, const Architecture& architecture, const WhenSmall& when) {
  entries.push_back(std::make_unique<ChoosingBackwardEntry<Columns, RoomyColumns, Short>>(
      architecture, backward_info<Columns, kForm>(architecture, tile_name<Columns>() + "+" + tile_name<Short>()),
      sizeof(ColumnMemory<Columns>), when));
  entries.push_back(std::make_unique<BackwardEntry<Short, Short, NoRows, NoRows>>(
      architecture, backward_info<Short, kForm>(architecture, tile_name<Short>()), sizeof(ColumnMemory<Short>)));
}

/// Adds the entries that choose; they come before those without a choice, since the first that serves is taken.
template <class T, int kHeadDim>
void add_choosing_entries(KernelEntries& entries, const WhenSmall& when) {
  using Columns = LargeColumns<T, kHeadDim>;
  using Short = ShortColumns<T, kHeadDim>;
  add_choosing_entries_of<Columns, RoomyColumns<T, kHeadDim>, Short, MaskForm::intervals>(entries, kLarge, when);
  add_choosing_entries_of<Columns, RoomyColumns<T, kHeadDim>, Short, MaskForm::bits>(entries, kLarge, when);
}

template <class T, int kHeadDim>
void add_large_entries_of(KernelEntries& entries) {
  using Columns = LargeColumns<T, kHeadDim>;
  using Rows = LargeRows<T, kHeadDim>;
  static_assert(sizeof(ColumnMemory<Columns>) <= kLargeSharedBytes);
  static_assert(sizeof(QueryGradientMemory<Rows>) <= kLargeSharedBytes);
  add_entries<Columns, RoomyColumns<T, kHeadDim>, Rows, RoomyRows<T, kHeadDim>>(entries, kLarge);
}

template <int kHeadDim>
void add_large_entries(KernelEntries& entries) {
  add_large_entries_of<__nv_bfloat16, kHeadDim>(entries);
  add_large_entries_of<__half, kHeadDim>(entries);
}

template <class T, int kHeadDim>
void add_compact_entries_of(KernelEntries& entries) {
  using Columns = CompactColumns<T, kHeadDim>;
  using Rows = CompactRows<T, kHeadDim>;
  static_assert(sizeof(ColumnMemory<Columns>) <= kCompactSharedBytes);
  static_assert(sizeof(QueryGradientMemory<Rows>) <= kCompactSharedBytes);
  add_entries<Columns, Columns, Rows, Rows>(entries, kCompact);
}

template <int kHeadDim>
void add_compact_entries(KernelEntries& entries) {
  add_compact_entries_of<__nv_bfloat16, kHeadDim>(entries);
  add_compact_entries_of<__half, kHeadDim>(entries);
}

}  // namespace flashmask::cuda::sm80
