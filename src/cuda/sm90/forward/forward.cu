// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "cuda/common/forward_entry.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/forward/forward.h"
#include "cuda/sm90/forward/forward_launch.cuh"
#include "cuda/sm90/forward/forward_shapes.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

ForwardArguments arguments_of(const Plan& plan, const DeviceMap& map, const ForwardTensors& tensors,
                              const KernelExecution& execution, int* next_item) {
  ForwardArguments arguments{row_arguments(
      plan, map, score_arguments(plan.problem(), execution, tensors.sinks, tensors.alibi, tensors.bias), next_item)};
  arguments.o = tensors.o.data;
  arguments.o_batch = tensors.o.strides[0];
  arguments.o_row = tensors.o.strides[1];
  arguments.o_head = tensors.o.strides[2];
  arguments.lse = static_cast<float*>(tensors.lse.data);
  arguments.lse_batch = tensors.lse.strides[0];
  arguments.lse_head = tensors.lse.strides[1];
  arguments.value_dim = static_cast<int>(plan.problem().value_dim);
  arguments.softcap = softcap_arguments(plan.problem());
  return arguments;
}

/// What the entries of common/forward_entry.h launch. `Drops`, `Caps`, `Biases`, `Adds`: the shapes of the kernels that
/// drop probabilities, cap scores, bias them by ALiBi and by a tensor; void: there are none. No kernel does two of
/// these.
template <class Shape_, class Drops = void, class Caps = void, class Biases = void, class Adds = void>
struct ForwardLauncher {
  using Shape = Shape_;
  static constexpr bool kCounts = true, kCombines = false, kReadsUnits = true;
  static constexpr int kBiasesAbove = kNarrow;
  static constexpr Features kFeatures = (std::is_void_v<Drops> ? Features() : Features{Feature::dropout}) |
                                        (std::is_void_v<Caps> ? Features() : Features{Feature::softcap}) |
                                        (std::is_void_v<Biases> ? Features() : Features{Feature::alibi}) |
                                        (std::is_void_v<Adds> ? Features() : kAddedBiases<Shape>);
  static constexpr std::size_t room() { return 0; }

  static DeviceNeeds needs(const Architecture& architecture) { return {architecture.capability, true}; }
  static void launch(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map, int* next_item, const TileChoice& choice) {
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    ForwardArguments arguments = arguments_of(plan, map, tensors, execution, next_item);
    arguments.choice = choice;
    if constexpr (!std::is_void_v<Biases>) {
      if (plan.problem().change.bias() == ScoreBias::alibi) return attend<Biases>(arguments, tensors, stream);
    }
    if constexpr (!std::is_void_v<Adds>) {
      if (has_bias_tensor(plan.problem())) return attend<Adds>(arguments, tensors, stream);
    }
    if constexpr (!std::is_void_v<Caps>) {
      if (plan.problem().change.cap() > 0) return attend<Caps>(arguments, tensors, stream);
    }
    if constexpr (!std::is_void_v<Drops>) {
      if (has_dropout(plan.problem())) return attend<Drops>(arguments, tensors, stream);
    }
    attend<Shape>(arguments, tensors, stream);
  }
};

/// Launches a shape, `Of`, and its instances with dropout and with changed scores, made by `Instance`.
template <template <class, MaskForm> class Of, template <template <class> class, class, MaskForm> class Instance,
          class T, MaskForm kForm>
using LauncherOf = ForwardLauncher<Of<T, kForm>, Instance<Dropping, T, kForm>, Instance<Capping, T, kForm>,
                                   std::conditional_t<kIsCommon<Of<T, kForm>>, Instance<Biasing, T, kForm>, void>,
                                   std::conditional_t<kIsCommon<Of<T, kForm>>, Instance<Adding, T, kForm>, void>>;

template <class Launcher>
void add_entry(KernelEntries& entries) {
  add_forward_entry<Launcher>(entries, kArchitecture, Launcher::Shape::kForm);
}

template <class Launcher, class Small>
void add_choosing_entries(KernelEntries& entries, const WhenSmall& when) {
  add_choosing_forward_entries<Launcher, ForwardLauncher<Small>>(entries, kArchitecture, Small::kForm, when);
}

/// The numbers of WhenSmall come from timing documents of many lengths in both tiles (docs/kernels/sm90.md).
template <class T, MaskForm kForm>
void add_entries(KernelEntries& entries) {
  add_choosing_entries<LauncherOf<Forward64, ForwardInstance64, T, kForm>,
                       ForwardShape<T, kForm, 64, 64, 1, 64, 72, 184, TileOrder::one_by_one>>(entries, {0.656F, 0.8F});
  add_choosing_entries<LauncherOf<Forward128, ForwardInstance128, T, kForm>,
                       ForwardShape<T, kForm, 128, 128, 2, 64, 72, 216, TileOrder::one_by_one, 4>>(entries,
                                                                                                   {0.815F, 0.9F});
  add_entry<LauncherOf<Forward192v128, ForwardInstance192v128, T, kForm>>(entries);
  add_entry<LauncherOf<Forward192, ForwardInstance192, T, kForm>>(entries);
  add_entry<LauncherOf<Forward256, ForwardInstance256, T, kForm>>(entries);
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
