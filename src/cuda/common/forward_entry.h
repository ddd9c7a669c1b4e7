// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/row_checks.h"
#include "cuda/common/tile_choice.h"
#include "cuda/runtime/device.h"
#include "plan/plan_choice.h"

/// The forward's entries of the kernel table, for every family of kernels. A family describes one kernel by a launcher:
///
///     struct Launcher {
///       using Shape = …;  // kRows, kColumns, kHeadDim, kValueDim, Element
///       static constexpr Features kFeatures;  // besides those of every forward
///       static constexpr bool kCombines;      // whether it has a kernel for each set of features
///       static constexpr bool kCounts;        // whether its blocks always take their work items from a counter
///       static constexpr bool kReadsUnits;    // Kernel::reads_units()
///       static constexpr std::size_t room();  // the shared memory of a multiprocessor with which small tiles pay
///       static DeviceNeeds needs(const Architecture&);
///       static void launch(const Plan&, const ForwardTensors&, const KernelExecution&, const DeviceMap&,
///                          int* next_item, const TileChoice&);
///       // Where kernels are compiled for changes of scores, Kernel::compiled_code():
///       static std::vector<KernelCode> compiled_code(const Problem&, std::size_t block_bytes);
///       // Where tangents are computed too, for the same tiles:
///       static constexpr bool kTangents = true;
///       static void launch_tangents(const Plan&, const TangentTensors&, const KernelExecution&, const DeviceMap&);
///     };
///
/// next_item: a counter of work items that is zero, or null where each block has one item.
namespace flashmask::cuda {

template <class Launcher>
concept ComputesTangents = requires {
  requires Launcher::kTangents;
};

template <class Launcher>
void run_tangents_of(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map) {
  if constexpr (ComputesTangents<Launcher>) {
    const CurrentDevice current(plan.problem().device);
    Launcher::launch_tangents(plan, tensors, execution, map);
  }
}

/// Zeroes a counter for each of two launches, at the start of the workspace.
inline int* clear_forward_counters(const KernelExecution& execution) {
  auto* const counters = reinterpret_cast<int*>(execution.workspace);
  check(cudaMemsetAsync(counters, 0, 2 * sizeof(int), static_cast<cudaStream_t>(execution.stream)),
        "forward: clearing the workspace");
  return counters;
}

inline void check_forward_rows(const ForwardTensors& tensors) {
  check_rows("forward: q", tensors.q);
  check_rows("forward: k", tensors.k);
  check_rows("forward: v", tensors.v);
  check_rows("forward: o", tensors.o);
}

/// `own`: features besides those of every forward and of the launcher.
template <class Launcher>
KernelInfo forward_info(const Architecture& architecture, MaskForm form, const std::string& tiles, Features own = {}) {
  using Shape = typename Launcher::Shape;
  const Features features =
      Features{Feature::deterministic, Feature::sinks, Feature::max_scores} | Launcher::kFeatures | own;
  return info_of<Shape>(architecture, Direction::forward, form, {Shape::kHeadDim, Shape::kValueDim}, tiles, features);
}

template <class Launcher>
class ForwardEntry final : public KernelEntry<ForwardKernel> {
  using Shape = typename Launcher::Shape;

 public:
  ForwardEntry(const Architecture& architecture, MaskForm form)
      : KernelEntry(forward_info<Launcher>(architecture, form, tile_name<Shape>(), {Feature::invariant}),
                    Launcher::needs(architecture), Launcher::kCombines, biases_above<Launcher>()) {}

  std::size_t workspace_bytes(const Problem&, int) const override { return Launcher::kCounts ? 2 * sizeof(int) : 0; }
  std::vector<MapRequest> maps() const override { return {{kTile<Shape>, MapSide::rows}}; }
  bool reads_units() const override { return Launcher::kReadsUnits; }
  std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t block_bytes) const override {
    return compiled_code_of(Launcher(), problem, block_bytes);
  }
  bool has_tangents() const override { return ComputesTangents<Launcher>; }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const CurrentDevice current(plan.problem().device);
    check_forward_rows(tensors);
    int* const counters = Launcher::kCounts ? clear_forward_counters(execution) : nullptr;
    Launcher::launch(plan, tensors, execution, map(plan), counters, {});
  }
  void run_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution) const override {
    run_tangents_of<Launcher>(plan, tensors, execution, map(plan));
  }

 private:
  static const DeviceMap& map(const Plan& plan) { return PlanAccess::device(plan).map(kTile<Shape>, MapSide::rows); }
};

/// An entry that takes the tiles of Small where rows are short; the device chooses unless the plan says which. The
/// blocks of the launch that is not chosen return at once.
template <class Launcher, class Small>
class ChoosingForwardEntry final : public KernelEntry<ForwardKernel> {
  using Shape = typename Launcher::Shape;
  using SmallShape = typename Small::Shape;

 public:
  ChoosingForwardEntry(const Architecture& architecture, MaskForm form, const WhenSmall& when)
      : KernelEntry(forward_info<Launcher>(architecture, form, tile_name<Shape>() + "+" + tile_name<SmallShape>()),
                    Launcher::needs(architecture), Launcher::kCombines, biases_above<Launcher>()),
        tiles_(Direction::forward, MapSide::rows, kTile<Shape>, kTile<SmallShape>, kTile<Shape>, when, Small::room()) {}

  std::size_t workspace_bytes(const Problem&, int) const override { return 2 * sizeof(int); }
  std::vector<MapRequest> maps() const override { return tiles_.maps(); }
  std::optional<SmallTiles> small_tiles() const override { return tiles_.small_tiles(); }
  std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t block_bytes) const override {
    return compiled_code_of(Launcher(), problem, block_bytes);
  }
  bool has_tangents() const override { return ComputesTangents<Launcher>; }

  void run(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution) const override {
    const CurrentDevice current(plan.problem().device);
    check_forward_rows(tensors);
    const TileSize size = tiles_.size(plan);
    const bool counts_small = Small::kCounts || size == TileSize::automatic;
    int* const counters = Launcher::kCounts || counts_small ? clear_forward_counters(execution) : nullptr;
    if (size != TileSize::small)
      Launcher::launch(plan, tensors, execution, tiles_.large_map(plan), Launcher::kCounts ? counters : nullptr,
                       tiles_.choice(plan, size, false));
    if (size != TileSize::large)
      Small::launch(plan, tensors, execution, tiles_.small_map(plan), counts_small ? counters + 1 : nullptr,
                    tiles_.choice(plan, size, true));
  }
  void run_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution) const override {
    run_tangents_of<Launcher>(plan, tensors, execution, tiles_.large_map(plan));
  }

 private:
  TwoTiles tiles_;
};

template <class Launcher>
void add_forward_entry(KernelEntries& entries, const Architecture& architecture, MaskForm form) {
  entries.push_back(std::make_unique<ForwardEntry<Launcher>>(architecture, form));
}

/// Adds an entry that chooses between both kernels, then one for each kernel alone, to be requested by name.
template <class Launcher, class Small>
void add_choosing_forward_entries(KernelEntries& entries, const Architecture& architecture, MaskForm form,
                                  const WhenSmall& when) {
  entries.push_back(std::make_unique<ChoosingForwardEntry<Launcher, Small>>(architecture, form, when));
  add_forward_entry<Launcher>(entries, architecture, form);
  add_forward_entry<Small>(entries, architecture, form);
}

}  // namespace flashmask::cuda
