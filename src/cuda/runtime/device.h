// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

/// What kernels ask of a device.
struct DeviceFacts {
  std::string name;
  ComputeCapability capability;
  int multiprocessors;
  std::size_t block_shared_bytes;  ///< shared memory that a block may have,
  std::size_t shared_bytes;        ///< and a multiprocessor has
  std::size_t cache_bytes;         ///< of the L2 cache
};

/// Throws Status::invalid_argument where the machine has no device of that index.
const DeviceFacts& device_facts(Device device);

/// What code needs to run.
struct DeviceNeeds {
  ComputeCapability capability;
  bool exactly;                  ///< runs on no later one
  std::size_t shared_bytes = 0;  ///< that a block takes, of dynamic shared memory,
  int blocks = 1;                ///< and how many are to fit a multiprocessor
};

/// Shared memory of a multiprocessor that blocks take: the driver keeps 1 KB for each.
constexpr std::size_t shared_of_blocks(std::size_t block_bytes, int blocks) {
  return (block_bytes + 1024) * static_cast<std::size_t>(blocks);
}

constexpr DeviceNeeds exactly(int major, int minor) { return {{major, minor}, true}; }
constexpr DeviceNeeds at_least(int major, int minor) { return {{major, minor}, false}; }

/// Why no device of this machine has what code needs; empty when one does.
std::string device_refusal(const DeviceNeeds& needs);
/// The same of one device; empty also where there is none of its index, which CurrentDevice refuses.
std::string device_refusal(Device device, const DeviceNeeds& needs);
/// The same from its facts, and what to call it.
std::string device_refusal(const std::string& device, const DeviceFacts& facts, const DeviceNeeds& needs);

/// Why the runtime finds no device: the versions of CUDA that the driver, 0 where there is none, and this build are
/// for, as CUDA numbers them.
std::string why_no_device(int driver, int build);

/// How many the current device has.
int multiprocessors();

}  // namespace flashmask::cuda
