// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cuda/common/forward_entry.h"
#include "cuda/common/tensor_views.h"
#include "cuda/common/views.h"
#include "cuda/runtime/device.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/forward/forward_arguments.h"
#include "cuda/sm90/forward/forward_changing.h"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"
#include "flashmask/error.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

ForwardArguments arguments_of(const Plan& plan, const DeviceMap& map, const ForwardTensors& tensors,
                              const KernelExecution& execution, int* next_item) {
  const ScoreArguments score = score_arguments(plan.problem(), execution, tensors.sinks, tensors.alibi, tensors.bias);
  return forward_arguments(row_arguments(plan, map, score, next_item), plan.problem(), tensors);
}

/// kCompiles: by the kernel that is compiled for the problem's change of scores.
template <class Shape, bool kCompiles = false>
void attend(const Plan& plan, const ForwardArguments& arguments, const ForwardTensors& tensors, cudaStream_t stream) {
  const ForwardMaps maps{make_tensor_map("forward: q", tensors.q, Shape::kRows),
                         make_tensor_map("forward: k", tensors.k, Shape::kColumns),
                         make_tensor_map("forward: v", tensors.v, Shape::kColumns),
                         make_tensor_map("forward: o", tensors.o, Shape::kRows / Shape::kConsumerWarps),
                         make_tensor_map("forward: o", tensors.o, 1),
                         make_bias_map("forward: bias", plan.problem(), tensors.bias)};
  const int blocks = std::min(arguments.items, multiprocessors() * Shape::kBlocks);
  if constexpr (kCompiles)
    launch_changed_forward<Shape>(plan, tensors, arguments, maps, blocks, stream);
  else
    launch_forward<Shape>(arguments, maps, blocks, stream);
}

/// Refuses the largest scores where a call also changes or drops some: each of Hopper's kernels does one thing.
void check_plain(const Plan& plan) {
  if (has_plain_scores(plan.problem())) return;
  throw Error(Status::unsupported,
              "forward: max_scores is given for a problem with dropout or a change of scores, and " +
                  plan.kernel(Direction::forward).name + " does one of these at a time; take a kernel of sm80");
}

/// What the entries of common/forward_entry.h launch. kCompiles: whether kernels are compiled for changes of scores.
template <class Kernels, bool kCompiles = false>
struct ForwardLauncher {
  using Shape = typename Kernels::Shape;
  static constexpr bool kCounts = true, kCombines = false, kReadsUnits = true;
  static constexpr int kBiasesAbove = kNarrow;
  static constexpr Features kFeatures =
      Kernels::kFeatures | (kCompiles ? Features{Feature::any_change, Feature::functions} : Features());
  static constexpr std::size_t room() { return 0; }

  static DeviceNeeds needs(const Architecture& architecture) { return {architecture.capability, true}; }
  static std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t) {
    if constexpr (kCompiles) {
      if (compiles_change(problem)) return {changed_forward_code<Shape>(false)};
    }
    return {};
  }
  static void launch(const Plan& plan, const ForwardTensors& tensors, const KernelExecution& execution,
                     const DeviceMap& map, int* next_item, const TileChoice& choice) {
    ForwardArguments arguments = arguments_of(plan, map, tensors, execution, next_item);
    arguments.choice = choice;
    const auto stream = static_cast<cudaStream_t>(execution.stream);
    if constexpr (kCompiles) {
      if (compiles_change(plan.problem())) return attend<Shape, true>(plan, arguments, tensors, stream);
    }
    if (tensors.max_scores.present()) {
      check_plain(plan);
      return attend<MaximizingForward<Shape>>(plan, arguments, tensors, stream);
    }
    Kernels::with_one_for(plan.problem(),
                          [&](auto name) { attend<typename decltype(name)::Shape>(plan, arguments, tensors, stream); });
  }
};

/// Launches a shape, `Of`, and its instances, made by `Instance`.
template <template <class, MaskForm> class Of, template <template <class> class, class, MaskForm> class Instance,
          class T, MaskForm kForm>
using LauncherOf = ForwardLauncher<
    std::conditional_t<kIsCommon<Of<T, kForm>>,
                       Instances<Of<T, kForm>, Instance<Dropping, T, kForm>, Instance<Capping, T, kForm>,
                                 Instance<Biasing, T, kForm>, Instance<Adding, T, kForm>>,
                       Instances<Of<T, kForm>, Instance<Dropping, T, kForm>, Instance<Capping, T, kForm>>>,
    true>;

template <class Launcher>
void add_entry(KernelEntries& entries) {
  add_forward_entry<Launcher>(entries, kArchitecture, Launcher::Shape::kForm);
}

template <class Launcher, class Small>
void add_choosing_entries(KernelEntries& entries, const WhenSmall& when) {
  add_choosing_forward_entries<Launcher, ForwardLauncher<Instances<Small>>>(entries, kArchitecture, Small::kForm, when);
}

/// The numbers of WhenSmall come from timing documents of many lengths in both tiles (docs/kernels/sm90.md).
template <class T, MaskForm kForm>
void add_entries(KernelEntries& entries) {
  add_choosing_entries<LauncherOf<Forward64, ForwardInstance64, T, kForm>, ShortForward64<T, kForm>>(entries,
                                                                                                     {0.656F, 0.8F});
  add_choosing_entries<LauncherOf<Forward128, ForwardInstance128, T, kForm>, ShortForward128<T, kForm>>(entries,
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
