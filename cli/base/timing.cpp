// SPDX-License-Identifier: Apache-2.0
#include "cli/base/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace flashmask::cli {
namespace {

/// For short work, the first call is a warm-up.
std::vector<double> times_of(const std::function<void()>& work, const Repeats& repeats) {
  constexpr std::size_t kLeast = 4;
  std::vector<double> times = {seconds_of(work)};
  const bool is_long = times.front() > repeats.long_seconds;
  const std::size_t least = is_long ? static_cast<std::size_t>(repeats.long_runs) : kLeast;
  for (double total = 0; times.size() < least || (!is_long && total < repeats.enough_seconds); total += times.back()) {
    times.push_back(seconds_of(work));
  }
  return times;
}

}  // namespace

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_seconds(const std::function<void()>& work, const Repeats& repeats) {
  std::vector<double> times = times_of(work, repeats);
  if (times.size() > static_cast<std::size_t>(repeats.long_runs)) times.erase(times.begin());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double fastest_seconds(const std::function<void()>& work, const Repeats& repeats) {
  const std::vector<double> times = times_of(work, repeats);
  return *std::min_element(times.begin(), times.end());
}

}  // namespace flashmask::cli
