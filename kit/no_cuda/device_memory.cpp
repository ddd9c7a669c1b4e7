// SPDX-License-Identifier: Apache-2.0
#include "kit/device_memory.h"

#include "flashmask/error.h"

namespace flashmask::check {
namespace {

[[noreturn]] void refuse() {
  throw Error(Status::unsupported, "this build has no CUDA; build it where nvcc, CUDA's compiler, is on the PATH");
}

}  // namespace

std::vector<DeviceFacts> cuda_devices() { return {}; }

void use_device(Device) { refuse(); }

void synchronize_device() { refuse(); }

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) { refuse(); }
DeviceMemory::~DeviceMemory() = default;
void DeviceMemory::clear() { refuse(); }
void DeviceMemory::copy(const DeviceMemory&) { refuse(); }
void DeviceMemory::upload(const void*) { refuse(); }
void DeviceMemory::download(void*) const { refuse(); }

DeviceEvent::DeviceEvent() { refuse(); }
void DeviceEvent::record() { refuse(); }
double DeviceEvent::seconds_since(const DeviceEvent&) const { refuse(); }

}  // namespace flashmask::check
