// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/masks/mask_input.h"
#include "flashmask/linear_attention.h"

namespace flashmask::cli {

/// One kernel of linear attention on one mask.
struct LinearRun {
  std::string kernel;
  const NamedMask* mask;
  bool is_forward;
};

/// Pairs the kernels that run here, have the problem's device and dtype and a name that begins with `kernel`, with the
/// masks that are trees. direction: forward, backward, or empty for both. Throws Status::unsupported where there is no
/// pair.
std::vector<LinearRun> linear_runs(const LinearProblem& problem, const std::vector<NamedMask>& masks,
                                   const std::string& kernel, const std::string& direction);

/// Calls time(work) with the work of a run, on random tensors with a gate per token.
void time_linear(const LinearRun& run, const LinearProblem& problem, std::uint64_t seed,
                 const std::function<void(const std::function<void()>& work)>& time);

/// The operations of a run: products with states, and the triangles of steps.
double linear_flops(const LinearProblem& problem, bool is_forward);

}  // namespace flashmask::cli
