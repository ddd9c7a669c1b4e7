// SPDX-License-Identifier: Apache-2.0
#include "cli/base/progress_bar.h"

#include <algorithm>

#include "cli/base/table.h"

namespace flashmask::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kQuiet = 1s;
constexpr auto kRedraw = 200ms;
constexpr int kBarWidth = 30;
constexpr const char* kClearLine = "\r\x1b[K";

std::string bar(double fraction) {
  std::string drawn;
  for (int i = 0; i < kBarWidth; ++i) drawn += i < fraction * kBarWidth ? "█" : "░";
  return drawn;
}

}  // namespace

ProgressBar::ProgressBar(Console& console, std::int64_t total)
    : console_(console), total_(std::max<std::int64_t>(total, 1)) {
  if (console.progress) drawer_ = std::thread([this] { redraw_until_stopped(); });
}

ProgressBar::~ProgressBar() {
  if (!drawer_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  drawer_.join();
  if (drawn_) console_.err << kClearLine << std::flush;
}

void ProgressBar::begin(std::string label, std::int64_t steps, double expected_seconds) {
  const std::scoped_lock lock(mutex_);
  label_ = std::move(label);
  done_ += steps_;
  steps_ = steps;
  expected_seconds_ = expected_seconds;
  began_ = Clock::now();
}

void ProgressBar::redraw_until_stopped() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kQuiet, [this] { return stopped_; });
  while (!stopped_) {
    draw();
    changed_.wait_for(lock, kRedraw, [this] { return stopped_; });
  }
}

double ProgressBar::fraction(Clock::time_point now) const {
  constexpr double kNotYet = 0.99;  // largest fraction shown of the current steps, however long they take
  const double elapsed = std::chrono::duration<double>(now - began_).count();
  const double current = expected_seconds_ > 0 ? std::min(kNotYet, elapsed / expected_seconds_) : 0;
  return (static_cast<double>(done_) + current * static_cast<double>(steps_)) / static_cast<double>(total_);
}

void ProgressBar::draw() {
  const Clock::time_point now = Clock::now();
  const auto elapsed = std::chrono::duration_cast<std::chrono::seconds>(now - started_).count();
  const std::string percent = std::to_string(static_cast<int>(100 * fraction(now))) + " %";
  std::string line = bar(fraction(now)) + " " + percent + "  " + std::to_string(elapsed) + " s  " + label_;
  if (display_width(line) >= static_cast<std::size_t>(console_.width)) line = percent;
  console_.err << kClearLine << line << std::flush;
  drawn_ = true;
}

}  // namespace flashmask::cli
