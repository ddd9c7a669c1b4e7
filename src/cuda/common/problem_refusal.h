// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "flashmask/problem.h"

namespace flashmask::cuda {

/// Problems have fewer rows (over all heads, with padding), tiles and tokens than this, so that indices fit 32 bits.
constexpr std::int64_t kItemLimit = std::int64_t{1} << 31;

/// Says why no kernel of a GPU can serve a problem; empty when one can.
std::string problem_refusal(const Problem& problem);

}  // namespace flashmask::cuda
