// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/common/backward_entry.h"
#include "cuda/common/bias_gradient.h"
#include "cuda/common/instances.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_statistics.h"
#include "cuda/common/tile_choice.h"
#include "cuda/compile/compiled_kernel.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/backward/backward.h"
#include "cuda/sm80/backward/close_rows.cuh"
#include "cuda/sm80/backward/column_kernel.cuh"
#include "cuda/sm80/backward/shapes.cuh"
#include "plan/plan_choice.h"

/// The backward's launches and entries: either a launch over key tiles that also sums the gradient of q and one that
/// closes the sums, or one without sums and one over row tiles, which is deterministic.
namespace flashmask::cuda::sm80 {

/// Returns how many key heads run side by side.
inline int column_heads_in_section(const Problem& problem) {
  return key_heads_in_section(problem, static_cast<std::int64_t>(device_facts(problem.device).cache_bytes) / 10 * 6);
}

inline ChangeOperands operands_of(const Problem& problem, const BackwardTensors& tensors) {
  if (!compiles_change(problem)) return {};
  return compile::change_operands(problem, compile::change_tensors(tensors));
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
          .score = score_arguments(problem, execution, {}, tensors.alibi, tensors.bias),
          .columns = {static_cast<int>(problem.batch * problem.kv_heads), column_heads_in_section(problem),
                      map.outer_tiles},
          .map = map,
          .choice = choice,
          .mask = mask_view(made.mask),
          .change = operands_of(problem, tensors)};
}

/// Returns the forms of the tensors that a call's change of scores reads.
inline TensorForms forms_of(const Problem& problem, const BackwardTensors& tensors) {
  return compile::forms_of(problem.change, compile::change_tensors(tensors));
}

inline constexpr const char *kBackwardHeaders =
                                "#include \"cuda/sm80/backward/column_kernel.cuh\"\n"
                                "#include \"cuda/sm80/backward/shapes.cuh\"\n",
                            *kColumnKernel = "flashmask::cuda::sm80::column_kernel",
                            *kRowKernel = "flashmask::cuda::sm80::query_gradient_kernel";

/// Returns a kernel of Shape that is compiled for the problem's change of scores, which reads tensors of some forms.
template <class Shape, class Arguments>
auto compiled_backward(const char* function, const Problem& problem, const TensorForms& forms, void* stream) {
  return has_dropout(problem)
             ? compiled_kernel<Changed<Dropping<Shape>, Change>, Arguments>(kBackwardHeaders, function, problem, forms,
                                                                            stream)
             : compiled_kernel<Changed<Shape, Change>, Arguments>(kBackwardHeaders, function, problem, forms, stream);
}
/// Returns its code.
template <class Shape>
KernelCode backward_code(const char* function, const Problem& problem) {
  return has_dropout(problem) ? kernel_code<Changed<Dropping<Shape>, Change>>(kBackwardHeaders, function)
                              : kernel_code<Changed<Shape, Change>>(kBackwardHeaders, function);
}

template <class Shape>
auto column_kernel_of([[maybe_unused]] const Problem& problem, [[maybe_unused]] const TensorForms& forms,
                      [[maybe_unused]] void* stream) {
  if constexpr (Shape::kForm.short_rows) {
    return column_kernel<Shape>;
  } else {
    if (compiles_change(problem))
      return compiled_backward<Shape, ColumnArguments>(kColumnKernel, problem, forms, stream);
    return with_instance<Shape>(problem, [](auto name) { return column_kernel<typename decltype(name)::Shape>; });
  }
}

template <class Shape>
auto row_kernel_of(const Problem& problem, const TensorForms& forms, void* stream) {
  if (compiles_change(problem))
    return compiled_backward<Shape, QueryGradientArguments>(kRowKernel, problem, forms, stream);
  return with_instance<Shape>(problem, [](auto name) { return query_gradient_kernel<typename decltype(name)::Shape>; });
}

/// Whether the shape for devices with enough shared memory is taken.
template <class Memory>
bool takes_roomy(const Problem& problem) {
  return device_facts(problem.device).block_shared_bytes >= sizeof(Memory);
}

template <class Shape>
void launch_columns(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const KernelExecution& execution, const TileChoice& choice) {
  const ColumnArguments arguments = column_arguments<Shape>(plan, tensors, workspace, execution, choice);
  const int items = arguments.columns.all_tiles();
  if (items == 0) return;
  const auto kernel = column_kernel_of<Shape>(plan.problem(), forms_of(plan.problem(), tensors), execution.stream);
  divide_memory<ColumnMemory<Shape>>("backward", kernel, Shape::kBlocks, plan.problem());
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
                                   .scale = static_cast<float>(problem.softmax_scale()),
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
  const auto launch_own =
      takes_roomy<ColumnMemory<Roomy>>(plan.problem()) ? launch_columns<Roomy> : launch_columns<Shape>;
  launch_own(plan, tensors, workspace, execution, choice);
  if (workspace.query_sums != nullptr)
    launch_closing<Shape>(plan.problem(), tensors, workspace, choice, static_cast<cudaStream_t>(execution.stream));
}

template <class Shape>
void launch_rows(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                 const KernelExecution& execution) {
  const Problem& problem = plan.problem();
  QueryGradientArguments arguments{};
  static_cast<RowArguments&>(arguments) =
      row_arguments(plan, PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows),
                    score_arguments(problem, execution, {}, tensors.alibi, tensors.bias), nullptr);
  arguments.section_heads =
      heads_in_section(problem, static_cast<std::int64_t>(device_facts(problem.device).cache_bytes / 10 * 3));
  arguments.q = tensor_rows(tensors.q);
  arguments.k = tensor_rows(tensors.k);
  arguments.v = tensor_rows(tensors.v);
  arguments.grad_o = tensor_rows(tensors.grad_o);
  arguments.grad_q = output_rows(tensors.grad_q);
  arguments.statistics = workspace.rows;
  arguments.head_dim = static_cast<int>(problem.head_dim);
  arguments.change = operands_of(problem, tensors);
  if (arguments.items == 0) return;
  const auto kernel = row_kernel_of<Shape>(problem, forms_of(problem, tensors), execution.stream);
  divide_memory<QueryGradientMemory<Shape>>("backward", kernel, Shape::kBlocks, problem);
  launch<QueryGradientMemory<Shape>>("backward: the gradient of q", kernel, arguments.items, Shape::kThreads,
                                     static_cast<cudaStream_t>(execution.stream), arguments);
}

/// Computes the gradient of q alone. Roomy: as for pass_over_keys().
template <class Shape, class Roomy>
void pass_over_rows(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                    const KernelExecution& execution) {
  const auto launch_own =
      takes_roomy<QueryGradientMemory<Roomy>>(plan.problem()) ? launch_rows<Roomy> : launch_rows<Shape>;
  launch_own(plan, tensors, workspace, execution);
}

/// Computes what every pass needs of the rows, and clears the sums.
template <class Shape, bool kSums>
void prepare_rows(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                  const KernelExecution& execution) {
  const Problem& problem = plan.problem();
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  launch_row_statistics(plan, tensors, {}, workspace, Shape::kHeadDim == 96 ? 128 : Shape::kHeadDim, stream);
  if constexpr (kSums) {
    const auto rows = static_cast<std::size_t>(problem.batch * problem.query_heads * workspace.rows.padded);
    check(cudaMemsetAsync(workspace.query_sums, 0, rows * Shape::kHeadDim * sizeof(float), stream),
          "backward: clearing the sums");
  }
}

/// Stands in for the shape of a second pass, where the first one makes sums.
struct NoRows {};

/// Returns what is compiled for the problem's change of scores, on a GPU whose blocks have so much shared memory.
template <class Columns, class RoomyColumns, class Rows, class RoomyRows>
std::vector<KernelCode> compiled_backward_code(const Problem& problem, std::size_t block_bytes) {
  if (!compiles_change(problem)) return {};
  std::vector<KernelCode> all = {block_bytes >= sizeof(ColumnMemory<RoomyColumns>)
                                     ? backward_code<RoomyColumns>(kColumnKernel, problem)
                                     : backward_code<Columns>(kColumnKernel, problem)};
  if constexpr (!std::is_same_v<Rows, NoRows>)
    all.push_back(block_bytes >= sizeof(QueryGradientMemory<RoomyRows>) ? backward_code<RoomyRows>(kRowKernel, problem)
                                                                        : backward_code<Rows>(kRowKernel, problem));
  return all;
}

/// The launches of a backward. Roomy…: shapes for devices with enough shared memory for them. They have the same tiles,
/// and the same order of sums.
template <class Columns, class RoomyColumns, class Rows, class RoomyRows>
struct BackwardSteps {
  static constexpr bool kSums = std::is_same_v<Rows, NoRows>, kReadsUnits = false, kCombines = true;
  static constexpr int kSumsDim = kSums ? Columns::kHeadDim : 0;

  static std::vector<MapRequest> maps() {
    std::vector<MapRequest> all = {{kTile<Columns>, MapSide::columns}};
    if constexpr (!kSums) all.push_back({kTile<Rows>, MapSide::rows});
    return all;
  }
  static std::optional<SmallTiles> small_tiles() { return {}; }

  static std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t block_bytes) {
    return compiled_backward_code<Columns, RoomyColumns, Rows, RoomyRows>(problem, block_bytes);
  }
  static void launch(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                     const KernelExecution& execution) {
    prepare_rows<Columns, kSums>(plan, tensors, workspace, execution);
    if (kSums || PlanAccess::wants_key_gradients(plan))
      pass_over_keys<Columns, RoomyColumns>(plan, tensors, workspace, execution);
    if constexpr (!kSums) {
      if (PlanAccess::wants_query_gradient(plan)) pass_over_rows<Rows, RoomyRows>(plan, tensors, workspace, execution);
    }
    launch_bias_gradient(plan, tensors, workspace, execution,
                         PlanAccess::device(plan).map(kTile<Columns>, MapSide::columns));
  }

  static DeviceNeeds needs(const Architecture& architecture) {
    std::size_t bytes = sizeof(ColumnMemory<Columns>);
    if constexpr (!kSums) bytes = std::max(bytes, sizeof(QueryGradientMemory<Rows>));
    return {architecture.capability, false, bytes};
  }
};

/// The launches of a backward with sums that takes small tiles where rows are short.
template <class Columns, class RoomyColumns, class Short>
class ChoosingSteps {
 public:
  static constexpr bool kReadsUnits = false, kCombines = true;
  static constexpr int kSumsDim = Columns::kHeadDim;

  explicit ChoosingSteps(const WhenSmall& when)
      : tiles_(Direction::backward, MapSide::columns, kTile<Columns>, kTile<Short>, kTile<Short>, when,
               shared_of_blocks(sizeof(ColumnMemory<Short>), Short::kBlocks)) {}

  std::vector<MapRequest> maps() const { return tiles_.maps(); }
  std::optional<SmallTiles> small_tiles() const { return tiles_.small_tiles(); }

  static std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t block_bytes) {
    return compiled_backward_code<Columns, RoomyColumns, NoRows, NoRows>(problem, block_bytes);
  }
  void launch(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
              const KernelExecution& execution) const {
    prepare_rows<Columns, true>(plan, tensors, workspace, execution);
    const TileSize size = tiles_.size(plan);
    if (size != TileSize::small)
      pass_over_keys<Columns, RoomyColumns>(plan, tensors, workspace, execution, tiles_.choice(plan, size, false));
    if (size != TileSize::large)
      pass_over_keys<Short, Short>(plan, tensors, workspace, execution, tiles_.choice(plan, size, true));
    launch_bias_gradient(plan, tensors, workspace, execution, tiles_.large_map(plan));
  }

 private:
  TwoTiles tiles_;
};

template <class Columns>
KernelInfo column_info(const Architecture& architecture, MaskForm form, const std::string& tiles) {
  const Features features = Columns::kForm.short_rows
                                ? Features()
                                : Features{Feature::any_change, Feature::functions} |
                                      (kHasOneKernel<Columns> ? kOneKernelFeatures : kInstanceFeatures);
  return backward_info<Columns>(architecture, form, {Columns::kHeadDim, Columns::kHeadDim}, tiles, features);
}

/// Adds the entry that sums the gradient of q and the deterministic one. A kernel reads both forms of masks, and has an
/// entry for each.
template <class Columns, class RoomyColumns, class Rows, class RoomyRows>
void add_entries(KernelEntries& entries, const Architecture& architecture) {
  using Summing = BackwardSteps<Columns, RoomyColumns, NoRows, NoRows>;
  using Repeatable = BackwardSteps<Columns, RoomyColumns, Rows, RoomyRows>;
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits}) {
    const KernelInfo info = column_info<Columns>(architecture, form, tile_name<Columns>());
    add_backward_entry<Summing>(entries, info, Summing::needs(architecture));
    add_backward_entry<Repeatable>(entries, deterministic(info), Repeatable::needs(architecture));
  }
}

/// Adds the entry that chooses between both tiles, before those without a choice, since the first that serves is taken,
/// and that of short rows alone, to be requested by name.
template <class T, int kHeadDim>
void add_choosing_entries(KernelEntries& entries, const WhenSmall& when) {
  using Columns = LargeColumns<T, kHeadDim>;
  using Short = ShortColumns<T, kHeadDim>;
  using Large = BackwardSteps<Columns, RoomyColumns<T, kHeadDim>, NoRows, NoRows>;
  using Small = BackwardSteps<Short, Short, NoRows, NoRows>;
  using Choosing = ChoosingSteps<Columns, RoomyColumns<T, kHeadDim>, Short>;
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits}) {
    add_backward_entry(entries, column_info<Columns>(kLarge, form, tile_name<Columns>() + "+" + tile_name<Short>()),
                       Large::needs(kLarge), Choosing(when));
    add_backward_entry<Small>(entries, column_info<Short>(kLarge, form, tile_name<Short>()), Small::needs(kLarge));
  }
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
