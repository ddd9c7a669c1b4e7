// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <vector>

#include "kit/device_memory.h"
#include "kit/linear_tensors.h"

namespace flashmask::check {

/// The tensors of a call of linear attention on its device: the host's own, or copies of them on a GPU.
class PlacedLinearTensors {
 public:
  PlacedLinearTensors(const LinearTensors& host, Device device);

  const LinearForwardTensors& forward() const { return forward_; }
  const LinearBackwardTensors& backward() const { return backward_; }

  /// Copies the results of finished calls into the host's tensors.
  void fetch() const;

 private:
  void place(TensorView& view, bool result);
  void place(LinearStates& states, bool result);

  Device device_;
  std::list<DeviceTensor> copies_;
  std::vector<const DeviceTensor*> results_;
  LinearForwardTensors forward_;
  LinearBackwardTensors backward_;
};

}  // namespace flashmask::check
