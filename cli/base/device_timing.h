// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Seconds of the same work on a GPU in two regimes.
struct DeviceTimes {
  double burst = 0;      ///< median of nine launches, each after 40 ms of rest
  double sustained = 0;  ///< median of launches back to back for 200 ms, after 50 ms of warm-up: power is the limit
};

/// Times work that is queued on the current device's default stream.
DeviceTimes time_on_device(const std::function<void()>& work);

/// Seconds from the call until the device is done, without the work that was queued before.
double seconds_with_device(const std::function<void()>& work);

}  // namespace flashmask::cli
