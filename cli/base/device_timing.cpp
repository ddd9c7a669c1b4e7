// SPDX-License-Identifier: Apache-2.0
#include "cli/base/device_timing.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <list>
#include <thread>
#include <vector>

#include "cli/base/timing.h"
#include "kit/device_memory.h"

namespace flashmask::cli {
namespace {

constexpr int kColdLaunches = 9;
constexpr std::chrono::milliseconds kRest(40);
constexpr double kWarmSeconds = 0.05, kMeasuredSeconds = 0.2;
constexpr int kLeastLaunches = 3;
constexpr std::size_t kScratchBytes = std::size_t{1} << 29;

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double burst(const std::function<void()>& work) {
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
  return median(times);
}

double sustained(const std::function<void()>& work, double expected) {
  const auto launches = [&](double seconds) { return static_cast<int>(seconds / expected) + kLeastLaunches; };
  for (int launch = launches(kWarmSeconds); launch > 0; --launch) work();
  std::list<check::DeviceEvent> events(1);
  events.back().record();
  for (int launch = launches(kMeasuredSeconds); launch > 0; --launch) {
    work();
    events.emplace_back().record();
  }
  std::vector<double> times;
  for (auto end = std::next(events.begin()); end != events.end(); ++end)
    times.push_back(end->seconds_since(*std::prev(end)));
  return median(times);
}

}  // namespace

DeviceTimes time_on_device(const std::function<void()>& work) {
  work();
  const double cold = burst(work);
  return {cold, sustained(work, cold)};
}

double seconds_with_device(const std::function<void()>& work) {
  check::synchronize_device();
  return seconds_of([&] {
    work();
    check::synchronize_device();
  });
}

}  // namespace flashmask::cli
