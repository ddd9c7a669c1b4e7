// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "cuda/scores/logarithms.h"
#include "flashmask/problem.h"

namespace flashmask::cuda {

/// A softcap for kernels that have an instance for it: y = tanh(product · scale / cap). Up to kNearCap caps from 0, y
/// is an odd polynomial of the product, right to 1.1e-5 of y: where all scores of a warp lie there, none takes a
/// special function.
struct SoftcapArguments {
  float to_exponent;  // 2 log₂ e · scale / cap
  float near;         // the farthest product that the polynomial is for; −1: none
  float odd[4];       // what the product's powers 1, 3, 5 and 7 are multiplied by
  float per_scale;    // 1 / (cap · log₂ e)
};

inline constexpr float kNearCap = 0.75F;

inline SoftcapArguments softcap_arguments(const Problem& problem) {
  if (!(problem.change.cap() > 0)) return {};
  // The smallest largest relative error of such a polynomial for tanh up to kNearCap.
  constexpr double kOdd[4] = {0.999988983, -0.332696703, 0.127426944, -0.0354527558};
  const double per_cap = problem.softmax_scale() / problem.change.cap();
  SoftcapArguments arguments{.to_exponent = static_cast<float>(2 * kLog2E * per_cap),
                             .near = static_cast<float>(kNearCap / per_cap),
                             .odd = {},
                             .per_scale = static_cast<float>(1 / (problem.change.cap() * kLog2E))};
  for (int i = 0; i < 4; ++i) arguments.odd[i] = static_cast<float>(kOdd[i] * std::pow(per_cap, 2 * i + 1));
  // Small caps have coefficients that float32 cannot hold.
  if (!std::isfinite(arguments.odd[3]) || !std::isfinite(arguments.near)) arguments.near = -1;
  return arguments;
}

}  // namespace flashmask::cuda
