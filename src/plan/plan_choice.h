// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/reorder.h"
#include "plan/device_plan.h"
#include "plan/kernel.h"
#include "schedule/places.h"

namespace flashmask {

/// Workspaces are aligned, as GPU kernels discard whole cache lines of 128 bytes in them.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// A plan's choice for one direction.
struct Plan::Choice {
  const Kernel* kernel;                          ///< nullptr: no kernel serves
  std::shared_ptr<const TileSchedule> schedule;  ///< nullptr: it is on the device
  std::string refusal = {};                      ///< why no kernel serves
  TileSize tiles = TileSize::automatic;
  bool query_gradient = true;  ///< whether grad_q is wanted; backward only
  bool key_gradients = true;
  bool compiles_later = false;  ///< PlanOptions::compile_backward_later; backward only
  std::vector<CompiledKernel> compiled = {};
  /// The plan that the kernel runs under, whose tokens lie in places; nullptr: its own plan.
  std::shared_ptr<const Plan> in_places = nullptr;
};

/// Throws if a mask of this shape does not fit the problem.
void check_mask(const MaskShape& mask, const Problem& problem);

/// Throws Status::invalid_argument if a plan that moves tokens cannot serve the problem. `option`: what moves them.
void check_moved(const char* option, const Problem& problem);

/// Throws where an invariant plan was asked for together with what is no document's own.
void check_invariant(const LoweredMask& mask, const Problem& problem, const PlanOptions& options);

/// Throws if small tiles are asked for and the kernel has none.
void check_tiles(const Kernel& kernel, TileSize tiles);

/// Returns the features that a plan's options require of its kernels.
Features needed_by(const PlanOptions& options);

/// Gives access to what a plan's public interface does not show, such as its kernels.
struct PlanAccess {
  using Choice = Plan::Choice;

  static const ForwardKernel& forward(const Plan& plan) {
    return static_cast<const ForwardKernel&>(*plan.choice(Direction::forward).kernel);
  }
  static const BackwardKernel& backward(const Plan& plan) {
    return static_cast<const BackwardKernel&>(*plan.choice(Direction::backward).kernel);
  }
  /// Returns the backward's kernel where what is compiled for it is compiled beside the forward's; nullptr: it is not.
  static const Kernel* compiled_beside_forward(const Plan& plan) {
    return plan.backward_->compiles_later ? nullptr : plan.backward_->kernel;
  }
  static bool wants_query_gradient(const Plan& plan) { return plan.choice(Direction::backward).query_gradient; }
  static bool wants_key_gradients(const Plan& plan) { return plan.choice(Direction::backward).key_gradients; }
  static TileSize tiles(const Plan& plan, Direction direction) { return plan.choice(direction).tiles; }
  /// Whether tokens are in another order than the caller's.
  static bool reorders(const Plan& plan) { return plan.reordering_ && plan.reordering_->gained; }
  /// Whether a direction's kernel runs on gathered tensors.
  static bool moves_tokens(const Plan& plan, Direction direction) {
    const Plan::Choice& chosen = plan.choice(direction);
    return reorders(plan) || (chosen.in_places != nullptr && !chosen.kernel->reads_units());
  }
  /// Returns the plan that a direction's kernel runs under.
  static const Plan& of_kernel(const Plan& plan, Direction direction) {
    const std::shared_ptr<const Plan>& in_places = plan.choice(direction).in_places;
    return in_places == nullptr ? plan : *in_places;
  }
  static bool is_invariant(const Plan& plan) {
    return plan.places_ != nullptr || plan.choice(Direction::forward).in_places != nullptr;
  }
  /// Returns where tokens lie for the kernels of a CPU; nullptr: a token's place is its number.
  static const Places* places(const Plan& plan) { return plan.places_.get(); }
  /// Returns the problem with lengths counted in places, as its workspace is laid out.
  static Problem problem_in_places(const Plan& plan);
  /// Returns the part on the device; only for plans for a GPU.
  static const DevicePlan& device(const Plan& plan) { return *plan.device_; }
  static Plan on_device(const Problem& problem, Visit visit, Choice forward, Choice backward, const DevicePlan& made,
                        std::shared_ptr<const Reordering> reordering);
  static Plan reordered(const Mask& mask, const Problem& problem, PlanOptions options, Executor& executor);
};

}  // namespace flashmask
