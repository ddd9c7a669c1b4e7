#include "timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace flashmask::cli {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_seconds(const std::function<void()>& work, const Repeats& repeats) {
  const double first = seconds_of(work);
  if (first > repeats.long_seconds) return first;
  std::vector<double> times;
  for (double total = 0; times.size() < 3 || total < repeats.enough_seconds; total += times.back()) {
    times.push_back(seconds_of(work));
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace flashmask::cli
