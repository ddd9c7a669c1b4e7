// SPDX-License-Identifier: Apache-2.0
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

TEST(DeviceRefusal, NamesTheCardAndWhatItLacks) {
  const cuda::DeviceFacts t4{"Tesla T4", {7, 5}, 40, 64 << 10, 64 << 10, 4 << 20};
  const cuda::DeviceFacts l40s{"NVIDIA L40S", {8, 9}, 142, 99 << 10, 100 << 10, 96 << 20};
  cuda::DeviceNeeds needs = cuda::at_least(8, 0);
  EXPECT_EQ(cuda::device_refusal("cuda:0", t4, needs),
            "cuda:0 (Tesla T4) has compute capability 7.5; it needs 8.0 or later");
  EXPECT_EQ(cuda::device_refusal("cuda:0", l40s, needs), "");
  needs.shared_bytes = 120 << 10;
  EXPECT_EQ(cuda::device_refusal("cuda:0", l40s, needs),
            "a block takes 120 KB of shared memory; cuda:0 (NVIDIA L40S) has 99 KB");
  needs.shared_bytes = 67 << 10;
  needs.blocks = 2;
  EXPECT_EQ(cuda::device_refusal("cuda:0", l40s, needs),
            "2 blocks take 136 KB of shared memory; a multiprocessor of cuda:0 (NVIDIA L40S) has 100 KB");
  needs.blocks = 1;
  EXPECT_EQ(cuda::device_refusal("cuda:0", l40s, needs), "");
}

TEST(WhyNoDevice, TellsAnOldDriverFromNone) {
  const std::string none = "this machine has no CUDA device, or no driver for it";
  EXPECT_EQ(cuda::why_no_device(0, 13000), none);
  EXPECT_EQ(cuda::why_no_device(13000, 13020), none);
  EXPECT_EQ(cuda::why_no_device(12040, 13000),
            "the driver of this machine is for CUDA 12.4; this build needs one for CUDA 13 or later");
}

}  // namespace
}  // namespace flashmask
