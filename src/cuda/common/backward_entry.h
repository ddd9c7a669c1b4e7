// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/kernel_entry.h"
#include "cuda/common/row_checks.h"
#include "cuda/common/sink_gradient.h"
#include "cuda/runtime/device.h"
#include "plan/plan_choice.h"

/// The backward's entries of the kernel table, for every family of kernels. A family describes the launches of one
/// backward by its steps:
///
///     struct Steps {
///       static constexpr bool kReadsUnits;  // Kernel::reads_units()
///       static constexpr bool kCombines;    // whether it has kernels for each set of features
///       static constexpr int kSumsDim;  // head dim of the sums for the gradient of q; 0: it makes none
///       std::vector<MapRequest> maps() const;
///       std::optional<SmallTiles> small_tiles() const;
///       // Where kernels are compiled for changes of scores, Kernel::compiled_code():
///       std::vector<KernelCode> compiled_code(const Problem&, std::size_t block_bytes) const;
///       void launch(const Plan&, const BackwardTensors&, const BackwardWorkspace&, const KernelExecution&) const;
///     };
namespace flashmask::cuda {

inline void check_backward_rows(const BackwardTensors& tensors) {
  check_rows("backward: q", tensors.q);
  check_rows("backward: k", tensors.k);
  check_rows("backward: v", tensors.v);
  check_rows("backward: o", tensors.o);
  check_rows("backward: grad_o", tensors.grad_o);
  check_rows("backward: grad_q", tensors.grad_q);
  check_rows("backward: grad_k", tensors.grad_k);
  check_rows("backward: grad_v", tensors.grad_v);
}

/// `features`: besides those that the backward of every family has.
template <class Shape>
KernelInfo backward_info(const Architecture& architecture, MaskForm form, HeadDims dims, const std::string& tiles,
                         Features features) {
  return info_of<Shape>(architecture, Direction::backward, form, dims, tiles,
                        features | Features{Feature::sinks, Feature::float32_key_gradients});
}

/// Describes the entry that computes the same gradients, the same bits on every run. chooses: whether it takes tiles by
/// what the whole mask is like.
inline KernelInfo deterministic(KernelInfo info, bool chooses = false) {
  info.features.add(Feature::deterministic);
  if (!chooses) info.features.add(Feature::invariant);
  info.name += ".deterministic";
  return info;
}

template <class Steps>
class BackwardEntry final : public KernelEntry<BackwardKernel> {
 public:
  BackwardEntry(KernelInfo info, const DeviceNeeds& needs, Steps steps = {})
      : KernelEntry(std::move(info), needs, Steps::kCombines, biases_above<Steps>()), steps_(std::move(steps)) {}

  std::size_t workspace_bytes(const Problem& problem, int) const override {
    return BackwardWorkspace(problem, Steps::kSumsDim, nullptr).bytes;
  }
  std::vector<MapRequest> maps() const override { return steps_.maps(); }
  bool reads_units() const override { return Steps::kReadsUnits; }
  std::vector<KernelCode> compiled_code(const Problem& problem, std::size_t block_bytes) const override {
    return compiled_code_of(steps_, problem, block_bytes);
  }
  std::optional<SmallTiles> small_tiles() const override { return steps_.small_tiles(); }

  void run(const Plan& plan, const BackwardTensors& tensors, const KernelExecution& execution) const override {
    const Problem& problem = plan.problem();
    const CurrentDevice current(problem.device);
    check_backward_rows(tensors);
    const BackwardWorkspace workspace(problem, Steps::kSumsDim, execution.workspace);
    steps_.launch(plan, tensors, workspace, execution);
    launch_sink_gradient(problem, tensors, workspace, static_cast<cudaStream_t>(execution.stream));
  }

 private:
  Steps steps_;
};

template <class Steps>
void add_backward_entry(KernelEntries& entries, KernelInfo info, const DeviceNeeds& needs, Steps steps = {}) {
  entries.push_back(std::make_unique<BackwardEntry<Steps>>(std::move(info), needs, std::move(steps)));
}

}  // namespace flashmask::cuda
