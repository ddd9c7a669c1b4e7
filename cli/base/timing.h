// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Wall-clock seconds of one call.
double seconds_of(const std::function<void()>& work);

/// How often a time is taken.
struct Repeats {
  double enough_seconds = 0.25;  ///< at least three calls, and more until they took this long together
  double long_seconds = 2;       ///< work that alone takes longer is called `long_runs` times
  int long_runs = 1;
};

/// Median over calls after one that warms up.
double median_seconds(const std::function<void()>& work, const Repeats& repeats = {});

/// The least of the calls: what is left when other programs disturb some of them.
double fastest_seconds(const std::function<void()>& work, const Repeats& repeats = {});

}  // namespace flashmask::cli
