#pragma once

#include <string>

#include "flashmask/kernels.h"
#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Makes a device current until the end of the scope. Throws Status::invalid_argument where the machine has none of
/// that index.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

/// Why no device of this machine runs code of a compute capability, such as 9.0; empty when one does.
std::string capability_refusal(ComputeCapability asked);
/// The same of one device; empty also where there is none of its index, which CurrentDevice refuses.
std::string capability_refusal(Device device, ComputeCapability asked);

/// How many the current device has.
int multiprocessors();

}  // namespace flashmask::cuda
