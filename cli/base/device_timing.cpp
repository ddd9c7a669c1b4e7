// SPDX-License-Identifier: Apache-2.0
#include "cli/base/device_timing.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "cli/base/timing.h"
#include "kit/device_memory.h"

namespace flashmask::cli {
namespace {

constexpr int kColdLaunches = 9;
constexpr std::chrono::milliseconds kRest(40);
constexpr std::size_t kScratchBytes = std::size_t{1} << 29;

}  // namespace

double cold_seconds(const std::function<void()>& work) {
  work();
  check::DeviceEvent begin, end;
  check::DeviceMemory scratch(kScratchBytes);
  std::vector<double> times;
  for (int launch = 0; launch < kColdLaunches; ++launch) {
    check::synchronize_device();
    std::this_thread::sleep_for(kRest);
    scratch.clear();  // lets the host get ahead of the device, and empties its caches
    begin.record();
    work();
    end.record();
    times.push_back(end.seconds_since(begin));
  }
  std::ranges::nth_element(times, times.begin() + kColdLaunches / 2);
  return times[kColdLaunches / 2];
}

double seconds_with_device(const std::function<void()>& work) {
  check::synchronize_device();
  return seconds_of([&] {
    work();
    check::synchronize_device();
  });
}

}  // namespace flashmask::cli
