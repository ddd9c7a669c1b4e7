#pragma once

#include <functional>

namespace flashmask::cli {

/// Wall-clock seconds of one call.
double seconds_of(const std::function<void()>& work);

/// Median over at least three calls, more while they take less than a quarter of a second together, after one that
/// warms up. Work that alone takes longer than two seconds is not repeated.
double median_seconds(const std::function<void()>& work);

}  // namespace flashmask::cli
