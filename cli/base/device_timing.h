// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Seconds of work that is queued on the current device's default stream: the median of nine launches with cold caches,
/// each after 40 ms of rest.
double cold_seconds(const std::function<void()>& work);

/// Seconds from the call until the device is done, without the work that was queued before.
double seconds_with_device(const std::function<void()>& work);

}  // namespace flashmask::cli
