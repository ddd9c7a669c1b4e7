#include "cuda/runtime/device.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "kit/device_memory.h"

namespace flashmask {
namespace {

TEST(DeviceRefusal, IsOfTheDeviceThatIsNamed) {
  const auto devices = check::cuda_devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Device device{DeviceType::cuda, static_cast<int>(i)};
    const std::string own = std::to_string(devices[i].major) + "." + std::to_string(devices[i].minor);
    EXPECT_EQ(cuda::device_refusal(device, cuda::exactly(devices[i].major, devices[i].minor)), "");
    EXPECT_EQ(cuda::device_refusal(device, cuda::at_least(devices[i].major, 0)), "");
    EXPECT_EQ(cuda::device_refusal(device, cuda::exactly(1, 2)),
              to_string(device) + " (" + devices[i].name + ") has compute capability " + own + "; it needs 1.2");
  }
  EXPECT_EQ(cuda::device_refusal({DeviceType::cuda, static_cast<int>(devices.size())}, cuda::exactly(9, 0)), "");
}

}  // namespace
}  // namespace flashmask
