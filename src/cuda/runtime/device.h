// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "flashmask/kernels.h"
#include "flashmask/tensor.h"

namespace flashmask::cuda {

/// Makes a device current until the end of the scope. Throws Status::invalid_argument if the machine has no device of
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

/// The properties of a device that kernels depend on.
struct DeviceFacts {
  std::string name;
  ComputeCapability capability;
  int multiprocessors;
  std::size_t block_shared_bytes;  ///< the most shared memory of a block
  std::size_t shared_bytes;        ///< shared memory of a multiprocessor
  std::size_t cache_bytes;         ///< size of the L2 cache
};

/// Throws Status::invalid_argument where the machine has no device of that index.
const DeviceFacts& device_facts(Device device);

/// The properties of a device that code needs to run.
struct DeviceNeeds {
  ComputeCapability capability;
  bool exactly;                  ///< does not run on later ones
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int blocks = 1;                ///< how many blocks must fit on a multiprocessor
};

/// Returns the shared memory of a multiprocessor that blocks take: the driver keeps 1 KB for each.
constexpr std::size_t shared_of_blocks(std::size_t block_bytes, int blocks) {
  return (block_bytes + 1024) * static_cast<std::size_t>(blocks);
}

constexpr DeviceNeeds exactly(int major, int minor) { return {{major, minor}, true}; }
constexpr DeviceNeeds at_least(int major, int minor) { return {{major, minor}, false}; }

/// Says why no device of this machine meets the needs; empty if one does.
std::string device_refusal(const DeviceNeeds& needs);
/// Says why one device does not meet the needs; also empty if there is no such device, which CurrentDevice refuses.
std::string device_refusal(Device device, const DeviceNeeds& needs);
/// Says the same from the facts of a device; `device` is what messages call it.
std::string device_refusal(const std::string& device, const DeviceFacts& facts, const DeviceNeeds& needs);

/// Says why the runtime finds no device. `driver` (0: none) and `build` are the CUDA versions that the driver and this
/// build are for, as CUDA numbers them.
std::string why_no_device(int driver, int build);

/// Returns how many multiprocessors the current device has.
int multiprocessors();

}  // namespace flashmask::cuda
