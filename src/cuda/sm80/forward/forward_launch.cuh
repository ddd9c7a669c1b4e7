// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cuda/common/forward_entry.h"
#include "cuda/common/instances.h"
#include "cuda/common/launch.cuh"
#include "cuda/compile/compiled_kernel.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"
#include "cuda/sm80/forward/forward.h"
#include "cuda/sm80/forward/forward_arguments.h"
#include "cuda/sm80/forward/forward_kernel.cuh"
#include "cuda/sm80/tangents/tangents.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm80 {

/// The kernels of a shape. kHasInstances: also those that change scores and drop probabilities, of shapes with several
/// kernels.
template <class Shape_, bool kHasInstances = !Shape_::kShort>
struct ForwardCode {
  using Shape = Shape_;
  static constexpr Features kFeatures =
      !kHasInstances ? Features()
                     : Features{Feature::any_change, Feature::functions} | (kHasOneKernel<Shape> ? kOneKernelFeatures
                                                                            : Shape::kTakesBias  ? kInstanceFeatures
                                                                                                 : kWithoutTensors);
  using Memory = ForwardMemory<Shape>;
  static constexpr const char *kHeaders = "#include \"cuda/sm80/forward/forward_kernel.cuh\"\n",
                              *kFunction = "flashmask::cuda::sm80::forward_kernel";

  /// Calls body(name) with the ShapeName of the kernel that is compiled for the problem's change of scores.
  template <class Body>
  static auto with_changed(const Problem& problem, bool max_scores, const Body& body) {
    const auto of = [&](auto name) { return body(ShapeName<Changed<typename decltype(name)::Shape, Change>>()); };
    if (has_dropout(problem)) return of(ShapeName<Maximizing<Dropping<Shape>>>());
    return max_scores ? of(ShapeName<Maximizing<Shape>>()) : of(ShapeName<Shape>());
  }

  /// Returns that kernel, for tensors of some forms.
  static auto compiled(const Plan& plan, const TensorForms& forms, bool max_scores, void* stream) {
    return with_changed(plan.problem(), max_scores, [&](auto name) {
      return compiled_kernel<typename decltype(name)::Shape, ForwardArguments>(
          kHeaders, kFunction, plan.problem(), forms, stream, PlanAccess::compiled_beside_forward(plan));
    });
  }
  static KernelCode compiled_code(const Problem& problem) {
    return with_changed(problem, false,
                        [](auto name) { return kernel_code<typename decltype(name)::Shape>(kHeaders, kFunction); });
  }

  /// max_scores: whether the call wants them. The kernel that drops probabilities writes them too where a call asks.
  static auto kernel([[maybe_unused]] const Problem& problem, bool max_scores) {
    if constexpr (kHasOneKernel<Shape>) {
      return max_scores ? forward_kernel<Maximizing<Changing<Shape>>> : forward_kernel<Changing<Shape>>;
    } else {
      if constexpr (kHasInstances) {
        if (has_dropout(problem) || (max_scores && has_score_changes(problem)))
          return forward_kernel<Maximizing<Changing<Dropping<Shape>>>>;
        if (has_score_changes(problem)) return forward_kernel<Changing<Shape>>;
      }
      return max_scores ? forward_kernel<Maximizing<Shape>> : forward_kernel<Shape>;
    }
  }
};

/// ForwardCode with a second shape, of the same tiles and for plain scores, for devices whose multiprocessors have room
/// for its blocks.
template <class Shape_, class RoomyShape>
struct ForwardCodeWithRoomy : ForwardCode<Shape_> {
  using Roomy = ForwardCode<RoomyShape, false>;

  static bool takes_roomy(const Problem& problem) {
    return has_plain_scores(problem) && device_facts(problem.device).shared_bytes >=
                                            shared_of_blocks(sizeof(typename Roomy::Memory), RoomyShape::kBlocks);
  }
};

/// Whether kernels of `Code` are compiled for changes of scores.
template <class Code>
inline constexpr bool kCompiles = Code::kFeatures.has(Feature::any_change);

/// Launches a kernel of `Code`. next_item: nullptr, or a counter for blocks that take several items.
template <class Code>
void launch_forward(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                    const DeviceMap& map, int* next_item, const TileChoice& choice) {
  using Shape = typename Code::Shape;
  if constexpr (requires { typename Code::Roomy; }) {
    if (Code::takes_roomy(plan.problem()))
      return launch_forward<typename Code::Roomy>(plan, tensors, execution, map, next_item, choice);
  }
  const DeviceFacts& facts = device_facts(plan.problem().device);
  RowArguments rows = row_arguments(
      plan, map, score_arguments(plan.problem(), execution, tensors.sinks, tensors.alibi, tensors.bias), next_item);
  rows.section_heads = heads_in_section(plan.problem(), static_cast<std::int64_t>(facts.cache_bytes / 10 * 3));
  rows.choice = choice;
  if (rows.items == 0) return;
  auto kernel = Code::kernel(plan.problem(), tensors.max_scores.present());
  ForwardArguments arguments = forward_arguments(rows, tensors);
  if constexpr (kCompiles<Code>) {
    if (compiles_change(plan.problem())) {
      const compile::ChangeTensors read = compile::change_tensors(tensors);
      kernel = Code::compiled(plan, compile::forms_of(plan.problem().change, read), tensors.max_scores.present(),
                              execution.stream);
      arguments.change = compile::change_operands(plan.problem(), read);
    }
  }
  const int blocks = next_item == nullptr ? rows.items : std::min(rows.items, facts.multiprocessors * Shape::kBlocks);
  const auto launch_with = [&]<class Memory>(std::type_identity<Memory>) {
    divide_memory<Memory>("forward", kernel, Shape::kBlocks, plan.problem());
    launch<Memory>("forward", kernel, blocks, Shape::kThreads, static_cast<cudaStream_t>(execution.stream), arguments);
  };
  if constexpr (StagesBias<Changing<Shape>> && kHasOneKernel<Shape>) {
    if (!compiles_change(plan.problem()) && comes_in_units<typename Shape::Element>(rows.score.bias))
      return launch_with(std::type_identity<BiasedForwardMemory<Changing<Shape>>>());
  }
  launch_with(std::type_identity<typename Code::Memory>());
}

/// What the entries of common/forward_entry.h launch. A kernel reads both forms of masks, and has an entry for each.
template <class Code>
struct ForwardLauncher {
  using Shape = typename Code::Shape;
  static constexpr Features kFeatures = Code::kFeatures;
  static constexpr bool kCounts = false, kCombines = true, kReadsUnits = false;
  static constexpr bool kTangents =
      Shape::kRows == 128 && Shape::kColumns == 64 && Shape::kHeadDim <= 128 && Shape::kValueDim <= 128;

  static constexpr std::size_t room() { return shared_of_blocks(sizeof(typename Code::Memory), Shape::kBlocks); }
  static DeviceNeeds needs(const Architecture& architecture) {
    return {architecture.capability, false, sizeof(typename Code::Memory), Shape::kBlocks};
  }
  static std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t) {
    if constexpr (kCompiles<Code>) {
      if (compiles_change(problem)) return {Code::compiled_code(problem)};
    }
    return {};
  }
  static void launch(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map, int* next_item, const TileChoice& choice) {
    launch_forward<Code>(plan, tensors, execution, map, next_item, choice);
  }
  static void launch_tangents(const Plan& plan, const TangentTensors& tensors, const KernelExecution& execution,
                              const DeviceMap& map) {
    constexpr int kDim = Shape::kHeadDim <= 64 && Shape::kValueDim <= 64 ? 64 : 128;
    sm80::launch_tangents<typename Shape::Element, kDim>(plan, tensors, execution, map);
  }
};

template <class Code>
void add_entries_of(KernelEntries& entries, const Architecture& architecture) {
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits})
    add_forward_entry<ForwardLauncher<Code>>(entries, architecture, form);
}

template <class Shape>
void add_entries(KernelEntries& entries, const Architecture& architecture) {
  add_entries_of<ForwardCode<Shape>>(entries, architecture);
}

template <class Code, class SmallCode>
void add_choosing_entries(KernelEntries& entries, const Architecture& architecture, const WhenSmall& when) {
  for (const MaskForm form : {MaskForm::intervals, MaskForm::bits})
    add_choosing_forward_entries<ForwardLauncher<Code>, ForwardLauncher<SmallCode>>(entries, architecture, form, when);
}

}  // namespace flashmask::cuda::sm80
