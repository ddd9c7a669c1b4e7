#include "cuda/runtime/device.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "kit/device_memory.h"

namespace flashmask {
namespace {

TEST(Capability, IsThatOfTheDeviceThatIsNamed) {
  const auto devices = check::cuda_devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Device device{DeviceType::cuda, static_cast<int>(i)};
    const std::string own = std::to_string(devices[i].major) + "." + std::to_string(devices[i].minor);
    EXPECT_EQ(cuda::capability_refusal(device, {devices[i].major, devices[i].minor}), "");
    EXPECT_EQ(cuda::capability_refusal(device, {1, 2}),
              to_string(device) + " has compute capability " + own + ", not 1.2");
  }
  EXPECT_EQ(cuda::capability_refusal({DeviceType::cuda, static_cast<int>(devices.size())}, {9, 0}), "");
}

}  // namespace
}  // namespace flashmask
