// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Seconds of the same work on a GPU in two regimes.
struct DeviceTimes {
  double burst = 0;      ///< one launch after 40 ms of rest; the median of nine
  double sustained = 0;  ///< back to back for 200 ms after 50 ms that warm up, when power is the limit; the median
};

/// Of work that is queued on the current device's default stream.
DeviceTimes time_on_device(const std::function<void()>& work);

/// From the call until the device is done, what was queued before not counted.
double seconds_with_device(const std::function<void()>& work);

}  // namespace flashmask::cli
