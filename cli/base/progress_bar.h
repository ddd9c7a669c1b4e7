// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "cli/base/console.h"

namespace flashmask::cli {

/// A bar on standard error for work that takes longer than a second; silent when standard error is not a terminal. Its
/// own thread redraws it, so that it moves while one long call runs. Its destructor erases it.
class ProgressBar {
 public:
  ProgressBar(Console& console, std::int64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Starts the next `steps` steps, named `label`. Given their expected time, the bar moves on its own meanwhile.
  void begin(std::string label, std::int64_t steps = 1, double expected_seconds = 0);

 private:
  using Clock = std::chrono::steady_clock;

  void redraw_until_stopped();
  void draw();
  double fraction(Clock::time_point now) const;

  Console& console_;
  const std::int64_t total_;
  const Clock::time_point started_ = Clock::now();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false, drawn_ = false;
  std::string label_;
  std::int64_t done_ = 0, steps_ = 0;
  double expected_seconds_ = 0;
  Clock::time_point began_ = started_;
  std::thread drawer_;  ///< last: it uses the members above
};

}  // namespace flashmask::cli
