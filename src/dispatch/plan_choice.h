#pragma once

#include <cstddef>
#include <memory>

#include "dispatch/kernel.h"
#include "flashmask/attention.h"
#include "flashmask/reorder.h"

namespace flashmask {

inline constexpr std::size_t kWorkspaceAlignment = 64;

/// What a plan holds for one direction.
struct Plan::Choice {
  const Kernel* kernel;
  std::shared_ptr<const TileSchedule> schedule;
};

/// Reaches the kernels of a plan, which its public face does not show.
struct PlanAccess {
  static const ForwardKernel& forward(const Plan& plan) {
    return static_cast<const ForwardKernel&>(*plan.forward_->kernel);
  }
  static const BackwardKernel& backward(const Plan& plan) {
    return static_cast<const BackwardKernel&>(*plan.backward_->kernel);
  }
  /// Tokens are not where the caller has them.
  static bool reorders(const Plan& plan) { return plan.reordering_ && plan.reordering_->gained; }
  static Plan reordered(const Mask& mask, const Problem& problem, PlanOptions options, Executor& executor);
};

}  // namespace flashmask
