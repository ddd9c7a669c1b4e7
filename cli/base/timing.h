// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Wall-clock seconds of one call.
double seconds_of(const std::function<void()>& work);

/// How often work is repeated for one time.
struct Repeats {
  double enough_seconds = 0.25;  ///< at least three calls, and more until they took this long in total
  double long_seconds = 2;       ///< work whose single call takes longer is called `long_runs` times
  int long_runs = 1;
};

/// The median over calls, after one call that warms up.
double median_seconds(const std::function<void()>& work, const Repeats& repeats = {});

/// The fastest call: the least disturbed by other programs.
double fastest_seconds(const std::function<void()>& work, const Repeats& repeats = {});

}  // namespace flashmask::cli
