// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace flashmask::cli {

/// Wall-clock seconds of one call.
double seconds_of(const std::function<void()>& work);

/// The median over at least three calls, and more until they took a quarter of a second in total, after one call that
/// warms up. Work that takes more than two seconds is called once.
double median_seconds(const std::function<void()>& work);

}  // namespace flashmask::cli
