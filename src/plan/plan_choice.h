// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "flashmask/attention.h"
#include "flashmask/reorder.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"

namespace flashmask {

/// Kernels on a GPU discard whole lines of its cache there, of 128 bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// What a plan holds for one direction.
struct Plan::Choice {
  const Kernel* kernel;                          ///< nullptr: none serves
  std::shared_ptr<const TileSchedule> schedule;  ///< nullptr: on the device
  std::string refusal = {};                      ///< why no kernel serves
  TileSize tiles = TileSize::automatic;
  bool query_gradient = true;  ///< whether somebody reads it; of the backward
  bool key_gradients = true;
};

/// Throws where a mask of this shape is not one of the problem's.
void check_mask(const MaskShape& mask, const Problem& problem);

/// Throws where small tiles are asked for and the kernel has none.
void check_tiles(const Kernel& kernel, TileSize tiles);

/// What kernels have to have for a plan's options.
Features needed_by(const PlanOptions& options);

/// Reaches the kernels of a plan, which its public face does not show.
struct PlanAccess {
  using Choice = Plan::Choice;

  static const ForwardKernel& forward(const Plan& plan) {
    return static_cast<const ForwardKernel&>(*plan.choice(Direction::forward).kernel);
  }
  static const BackwardKernel& backward(const Plan& plan) {
    return static_cast<const BackwardKernel&>(*plan.choice(Direction::backward).kernel);
  }
  static bool wants_query_gradient(const Plan& plan) { return plan.choice(Direction::backward).query_gradient; }
  static bool wants_key_gradients(const Plan& plan) { return plan.choice(Direction::backward).key_gradients; }
  static TileSize tiles(const Plan& plan, Direction direction) { return plan.choice(direction).tiles; }
  /// Tokens are not where the caller has them.
  static bool reorders(const Plan& plan) { return plan.reordering_ && plan.reordering_->gained; }
  /// Of a plan for a GPU.
  static const DevicePlan& device(const Plan& plan) { return *plan.device_; }
  static Plan on_device(const Problem& problem, Visit visit, Choice forward, Choice backward, const DevicePlan& made,
                        std::shared_ptr<const Reordering> reordering);
  static Plan reordered(const Mask& mask, const Problem& problem, PlanOptions options, Executor& executor);
};

}  // namespace flashmask
