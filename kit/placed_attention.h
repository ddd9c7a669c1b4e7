// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/mask.h"
#include "kit/device_memory.h"
#include "kit/host_tensor.h"

namespace flashmask::check {

/// The tensors of a problem on its device: the host's own, or copies of them on a GPU.
class PlacedTensors {
 public:
  PlacedTensors(const AttentionTensors& host, Device device);

  ForwardTensors forward() const { return forward_; }  ///< without max_scores()
  TensorView max_scores() const { return max_scores_; }
  BackwardTensors backward() const { return backward_; }

  /// Copies the results of finished calls into the host's tensors.
  void fetch() const;

 private:
  TensorView place(const TensorView& host, bool result);

  Device device_;
  std::list<DeviceTensor> copies_;
  std::vector<const DeviceTensor*> results_;
  ForwardTensors forward_;
  BackwardTensors backward_;
  TensorView max_scores_;
};

/// A plan on its problem's device, with the memory that it and its calls take on a GPU.
class PlacedPlan {
 public:
  PlacedPlan(const Mask& mask, const Problem& problem, const PlanOptions& options = {});

  const Plan& plan() const { return *plan_; }
  /// Bytes that the plan takes on a GPU; 0 on the host.
  std::size_t device_bytes() const { return memory_ ? memory_->bytes() : 0; }

  // On a GPU these return before the work is done.
  void forward(const ForwardTensors& tensors, Execution execution = {});
  void backward(const BackwardTensors& tensors, Execution execution = {});

 private:
  Execution with_workspace(Direction direction, Execution execution);

  std::optional<DeviceMemory> memory_;
  std::optional<DeviceMemory> forward_workspace_, backward_workspace_;
  std::optional<Plan> plan_;
};

}  // namespace flashmask::check
