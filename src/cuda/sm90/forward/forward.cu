// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/row_checks.h"
#include "cuda/common/tile_choice.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/forward/forward.h"
#include "cuda/sm90/forward/forward_launch.cuh"
#include "cuda/sm90/forward/forward_shapes.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

ForwardArguments arguments_of(const Plan& plan, const DeviceMap& map, const ForwardTensors& tensors,
                              const KernelExecution& execution, int* next_item) {
  ForwardArguments arguments{
      row_arguments(plan, map, score_arguments(plan.problem(), execution, tensors.sinks), next_item)};
  arguments.o = tensors.o.data;
  arguments.o_batch = tensors.o.strides[0];
  arguments.o_row = tensors.o.strides[1];
  arguments.o_head = tensors.o.strides[2];
  arguments.lse = static_cast<float*>(tensors.lse.data);
  arguments.lse_batch = tensors.lse.strides[0];
  arguments.lse_head = tensors.lse.strides[1];
  arguments.value_dim = static_cast<int>(plan.problem().value_dim);
  return arguments;
}

/// Launches the kernel for problems with dropout if there is one and the problem has dropout.
template <class Shape, class Dropping>
void attend_either(const Plan& plan, const ForwardArguments& arguments, const ForwardTensors& tensors,
                   cudaStream_t stream) {
  if constexpr (!std::is_void_v<Dropping>) {
    if (has_dropout(plan.problem())) return attend<Dropping>(arguments, tensors, stream);
  }
  attend<Shape>(arguments, tensors, stream);
}

/// Base of entries of the kernel table with one kernel and of entries that choose between two.
template <class Shape, bool kDropout>
class Entry : public KernelEntry<ForwardKernel> {
 public:
  explicit Entry(const std::string& tiles) : KernelEntry(info(tiles)) {}

  /// A counter of row tiles for each of two launches.
  std::size_t workspace_bytes(const Problem&, int) const override { return 2 * sizeof(int); }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const CurrentDevice current(plan.problem().device);
    check_rows("forward: o", tensors.o);
    auto* const next_items = reinterpret_cast<int*>(execution.workspace);
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    check(cudaMemsetAsync(next_items, 0, 2 * sizeof(int), stream), "forward: clearing the workspace");
    launch_all(plan, tensors, execution, next_items);
  }

 private:
  virtual void launch_all(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                          int* next_items) const = 0;

  static KernelInfo info(const std::string& tiles) {
    KernelInfo info = info_of<Shape>(kArchitecture, Direction::forward, {Shape::kHeadDim, Shape::kValueDim}, tiles,
                                     {Feature::deterministic, Feature::sinks});
    if (kDropout) info.features.add(Feature::dropout);
    return info;
  }
};

/// `Dropping`: the shape of the kernel for problems with dropout; void: there is none.
template <class Shape, class Dropping>
class FixedEntry final : public Entry<Shape, !std::is_void_v<Dropping>> {
 public:
  FixedEntry() : Entry<Shape, !std::is_void_v<Dropping>>(tile_name<Shape>()) {}

  std::vector<MapRequest> maps() const override { return {{kTile<Shape>, MapSide::rows}}; }

 private:
  void launch_all(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                  int* next_items) const override {
    const DeviceMap& map = PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows);
    attend_either<Shape, Dropping>(plan, arguments_of(plan, map, tensors, execution, next_items), tensors,
                                   static_cast<cudaStream_t>(execution.stream));
  }
};

/// Problems with dropout take the larger tiles.
template <class Shape, class Dropping, class Small>
class ChoosingEntry final : public Entry<Shape, true> {
 public:
  explicit ChoosingEntry(const WhenSmall& when)
      : Entry<Shape, true>(tile_name<Shape>() + "+" + tile_name<Small>()),
        tiles_(Direction::forward, MapSide::rows, kTile<Shape>, kTile<Small>, kTile<Shape>, when) {}

  std::vector<MapRequest> maps() const override { return tiles_.maps(); }
  std::optional<SmallTiles> small_tiles() const override { return tiles_.small_tiles(); }

 private:
  void launch_all(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                  int* next_items) const override {
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    const DeviceMap &map = tiles_.large_map(plan), &small = tiles_.small_map(plan);
    const TileSize size = tiles_.size(plan);
    if (size == TileSize::large)
      return attend_either<Shape, Dropping>(plan, arguments_of(plan, map, tensors, execution, next_items), tensors,
                                            stream);
    if (size == TileSize::small)
      return attend<Small>(arguments_of(plan, small, tensors, execution, next_items), tensors, stream);
    ForwardArguments arguments = arguments_of(plan, map, tensors, execution, next_items);
    arguments.choice = tiles_.choice(plan, false);
    attend<Shape>(arguments, tensors, stream);
    arguments = arguments_of(plan, small, tensors, execution, next_items + 1);
    arguments.choice = tiles_.choice(plan, true);
    attend<Small>(arguments, tensors, stream);
  }

  TwoTiles tiles_;
};

/// Adds a head dim's kernels: the entry that chooses, then one entry for each kernel alone, for callers that ask for it
/// by name.
template <class Shape, class Dropping, class Small>
void add_choosing_entries(KernelEntries& entries, const WhenSmall& when) {
  entries.push_back(std::make_unique<ChoosingEntry<Shape, Dropping, Small>>(when));
  entries.push_back(std::make_unique<FixedEntry<Shape, Dropping>>());
  entries.push_back(std::make_unique<FixedEntry<Small, void>>());
}

/// The numbers of WhenSmall come from timing documents of many lengths in both tiles (docs/kernels/sm90.md).
template <class T, MaskForm kForm>
void add_entries(KernelEntries& entries) {
  add_choosing_entries<Forward64<T, kForm>, DroppingForward64<T, kForm>,
                       ForwardShape<T, kForm, 64, 64, 1, 64, 72, 184, TileOrder::one_by_one>>(rows, {0.656F, 0.8F});
  add_choosing_entries<Forward128<T, kForm>, DroppingForward128<T, kForm>,
                       ForwardShape<T, kForm, 128, 128, 2, 64, 72, 216, TileOrder::one_by_one, 4>>(rows,
                                                                                                   {0.815F, 0.9F});
  entries.push_back(std::make_unique<FixedEntry<Forward192v128<T, kForm>, DroppingForward192v128<T, kForm>>>());
  entries.push_back(std::make_unique<FixedEntry<Forward192<T, kForm>, DroppingForward192<T, kForm>>>());
  entries.push_back(std::make_unique<FixedEntry<Forward256<T, kForm>, DroppingForward256<T, kForm>>>());
}

}  // namespace

KernelEntries forward_kernels() {
  KernelEntries entries;
  add_entries<__nv_bfloat16, MaskForm::intervals>(entries);
  add_entries<__nv_bfloat16, MaskForm::bits>(entries);
  add_entries<__half, MaskForm::intervals>(entries);
  add_entries<__half, MaskForm::bits>(entries);
  return entries;
}

}  // namespace flashmask::cuda::sm90
