// SPDX-License-Identifier: Apache-2.0
#include "cli/base/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace flashmask::cli {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_seconds(const std::function<void()>& work) {
  constexpr double kEnough = 0.25, kLong = 2;
  constexpr std::size_t kLeast = 3;
  const double first = seconds_of(work);
  if (first > kLong) return first;
  std::vector<double> times;
  for (double total = 0; times.size() < kLeast || total < kEnough; total += times.back()) {
    times.push_back(seconds_of(work));
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace flashmask::cli
