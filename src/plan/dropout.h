#pragma once

#include <cstdint>
#include <string>

#include "flashmask/dropout.h"

namespace flashmask {

/// 16-bit random numbers from here on are kept; 0: no dropout.
std::uint32_t dropout_threshold(double dropout);

/// Throws where a problem with dropout is given a state that its counters do not hold.
void check_dropout(const std::string& call, const Problem& problem, const DropoutState& state);

}  // namespace flashmask
