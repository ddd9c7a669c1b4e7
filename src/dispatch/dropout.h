#pragma once

#include <cstdint>

namespace flashmask {

/// 16-bit random numbers from here on are kept; 0: no dropout.
std::uint32_t dropout_threshold(double dropout);

}  // namespace flashmask
