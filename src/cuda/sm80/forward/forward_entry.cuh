// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_checks.h"
#include "cuda/common/tile_choice.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/forward/forward.h"
#include "cuda/sm80/forward/forward_kernel.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm80 {

/// A shape with one form of masks: a kernel reads both forms, and has an entry of the kernel table for each.
template <class Shape, MaskForm kForm_>
struct OfForm : Shape {
  static constexpr MaskForm kForm = kForm_;
};

/// The kernels of a shape. kDrops: also one with dropout.
template <class Shape_, bool kDrops = !Shape_::kShort>
struct ForwardCode {
  using Shape = Shape_;
  using Memory = ForwardMemory<Shape>;
  static auto kernel([[maybe_unused]] bool drops) {
    auto kernel = forward_kernel<Shape>;
    if constexpr (kDrops) {
      if (drops) kernel = forward_kernel<Dropping<Shape>>;
    }
    return kernel;
  }
};

/// ForwardCode with a second shape, of the same tiles and without dropout, for devices whose multiprocessors have room
/// for its blocks.
template <class Shape_, class RoomyShape>
struct ForwardCodeWithRoomy : ForwardCode<Shape_> {
  using Roomy = ForwardCode<RoomyShape, false>;

  static bool takes_roomy(const Problem& problem) {
    return !has_dropout(problem) && device_facts(problem.device).shared_bytes >=
                                        shared_of_blocks(sizeof(typename Roomy::Memory), RoomyShape::kBlocks);
  }
};

inline void check_forward_rows(const ForwardTensors& tensors) {
  check_rows("forward: q", tensors.q);
  check_rows("forward: k", tensors.k);
  check_rows("forward: v", tensors.v);
  check_rows("forward: o", tensors.o);
}

/// Launches a kernel of `Code`. next_item: nullptr, or a counter for blocks that take several items.
template <class Code>
void launch_forward(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                    const DeviceMap& map, int* next_item = nullptr, const TileChoice& choice = {}) {
  using Shape = typename Code::Shape;
  if constexpr (requires { typename Code::Roomy; }) {
    if (Code::takes_roomy(plan.problem()))
      return launch_forward<typename Code::Roomy>(plan, tensors, execution, map, next_item, choice);
  }
  const DeviceFacts& facts = device_facts(plan.problem().device);
  RowArguments rows = row_arguments(plan, map, score_arguments(plan.problem(), execution, tensors.sinks), next_item);
  rows.section_heads = heads_in_section(plan.problem(), static_cast<std::int64_t>(facts.cache_bytes / 10 * 3));
  rows.choice = choice;
  if (rows.items == 0) return;
  const auto kernel = Code::kernel(has_dropout(plan.problem()));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "forward: shared memory");
  const int blocks = next_item == nullptr ? rows.items : std::min(rows.items, facts.multiprocessors * Shape::kBlocks);
  launch<typename Code::Memory>("forward", kernel, blocks, Shape::kThreads, static_cast<cudaStream_t>(execution.stream),
                                forward_arguments(rows, tensors));
}

template <class Code>
class ForwardEntry final : public KernelEntry<ForwardKernel> {
  using Shape = typename Code::Shape;

 public:
  ForwardEntry(const Architecture& architecture, KernelInfo info)
      : KernelEntry(std::move(info), {architecture.capability, false, sizeof(typename Code::Memory), Shape::kBlocks}) {}

  std::size_t workspace_bytes(const Problem&, int) const override { return 0; }
  std::vector<MapRequest> maps() const override { return {{kTile<Shape>, MapSide::rows}}; }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const CurrentDevice current(plan.problem().device);
    check_forward_rows(tensors);
    launch_forward<Code>(plan, tensors, execution, PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows));
  }
};

/// An entry that takes small tiles where rows are short.
template <class Code, class SmallCode>
class ChoosingForwardEntry final : public KernelEntry<ForwardKernel> {
  using Shape = typename Code::Shape;
  using Small = typename SmallCode::Shape;

 public:
  ChoosingForwardEntry(const Architecture& architecture, KernelInfo info, const WhenSmall& when)
      : KernelEntry(std::move(info), {architecture.capability, false, sizeof(typename Code::Memory), Shape::kBlocks}),
        tiles_(Direction::forward, MapSide::rows, kTile<Shape>, kTile<Small>, kTile<Shape>, when,
               shared_of_blocks(sizeof(typename SmallCode::Memory), Small::kBlocks)) {}

  /// Returns the size of a counter of the small row tiles that blocks have taken.
  std::size_t workspace_bytes(const Problem&, int) const override { return sizeof(int); }
  std::vector<MapRequest> maps() const override { return tiles_.maps(); }
  std::optional<SmallTiles> small_tiles() const override { return tiles_.small_tiles(); }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const CurrentDevice current(plan.problem().device);
    check_forward_rows(tensors);
    const DeviceMap &map = tiles_.large_map(plan), &small = tiles_.small_map(plan);
    const TileSize size = tiles_.size(plan);
    if (size == TileSize::large) return launch_forward<Code>(plan, tensors, execution, map);
    if (size == TileSize::small) return launch_forward<SmallCode>(plan, tensors, execution, small);
    auto* const next_item = reinterpret_cast<int*>(execution.workspace);
    check(cudaMemsetAsync(next_item, 0, sizeof(int), static_cast<cudaStream_t>(execution.stream)),
          "forward: clearing the workspace");
    launch_forward<Code>(plan, tensors, execution, map, nullptr, tiles_.choice(plan, false));
    launch_forward<SmallCode>(plan, tensors, execution, small, next_item, tiles_.choice(plan, true));
  }

 private:
  TwoTiles tiles_;
};

template <class Shape, MaskForm kForm>
KernelInfo forward_info(const Architecture& architecture, const std::string& tiles) {
  Features features{Feature::deterministic, Feature::sinks};
  if (!Shape::kShort) features.add(Feature::dropout);
  return info_of<OfForm<Shape, kForm>>(architecture, Direction::forward, {Shape::kHeadDim, Shape::kValueDim}, tiles,
                                       features);
}

template <class Code, MaskForm kForm>
void add_entry(KernelEntries& entries, const Architecture& architecture) {
  using Shape = typename Code::Shape;
  entries.push_back(
      std::make_unique<ForwardEntry<Code>>(architecture, forward_info<Shape, kForm>(architecture, tile_name<Shape>())));
}

template <class Code>
void add_entries_of(KernelEntries& entries, const Architecture& architecture) {
  add_entry<Code, MaskForm::intervals>(entries, architecture);
  add_entry<Code, MaskForm::bits>(entries, architecture);
}

template <class Shape>
void add_entries(KernelEntries& entries, const Architecture& architecture) {
  add_entries_of<ForwardCode<Shape>>(entries, architecture);
}

/// Adds an entry that chooses between both kernels, then one for each kernel alone, to be requested by name.
template <class Code, class SmallCode, MaskForm kForm>
void add_choosing_entries_of(KernelEntries& entries, const Architecture& architecture, const WhenSmall& when) {
  using Shape = typename Code::Shape;
  using Small = typename SmallCode::Shape;
  entries.push_back(std::make_unique<ChoosingForwardEntry<Code, SmallCode>>(
      architecture, forward_info<Shape, kForm>(architecture, tile_name<Shape>() + "+" + tile_name<Small>()), when));
  add_entry<Code, kForm>(entries, architecture);
  add_entry<SmallCode, kForm>(entries, architecture);
}

template <class Code, class SmallCode>
void add_choosing_entries(KernelEntries& entries, const Architecture& architecture, const WhenSmall& when) {
  add_choosing_entries_of<Code, SmallCode, MaskForm::intervals>(entries, architecture, when);
  add_choosing_entries_of<Code, SmallCode, MaskForm::bits>(entries, architecture, when);
}

}  // namespace flashmask::cuda::sm80
