// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "flashmask/attention.h"
#include "flashmask/error.h"
#include "flashmask/reorder.h"
#include "plan/gather.h"
#include "plan/plan_choice.h"
#include "plan/registry.h"

namespace flashmask {
namespace {

[[noreturn]] void refuse_mask(const std::string& what) { throw Error(Status::invalid_argument, "plan: " + what); }

[[noreturn]] void refuse_on_device(const std::string& what, const Problem& problem) {
  throw Error(Status::unsupported, what + " of a plan for " + to_string(problem.device) + " is not on the host");
}

}  // namespace

void check_invariant(const LoweredMask& mask, const Problem& problem, const PlanOptions& options) {
  if (options.invariant && options.reorder)
    throw Error(Status::unsupported,
                "plan: invariant and reorder were asked for together; an order is found for the whole mask, so that it "
                "differs from a document's own: take one of them");
  if (options.invariant && mask.blocks() != nullptr && options.form != MaskForm::bits)
    throw Error(
        Status::unsupported,
        "plan: invariant and a block map beside intervals; its blocks lie at multiples of their size, not where "
        "documents begin: plan with form bits, or leave invariant out");
  const ScoreFunction* const function = problem.change.function();
  if (options.invariant && function != nullptr && !function->is_by_distance())
    throw Error(Status::unsupported,
                "plan: invariant and a function of scores that depends on a token's number in the call, which no "
                "document has alone: write it by sub(q, k), or leave invariant out");
}

void check_mask(const MaskShape& mask, const Problem& problem) {
  if (mask.rows != problem.query_length || mask.columns != problem.key_length)
    refuse_mask("the mask is " + std::to_string(mask.rows) + " rows by " + std::to_string(mask.columns) +
                " columns; expected query_length by key_length, " + std::to_string(problem.query_length) + " by " +
                std::to_string(problem.key_length));
  if (mask.batch != 1 && mask.batch != problem.batch)
    refuse_mask("the mask has a batch of " + std::to_string(mask.batch) + "; expected 1 or " +
                std::to_string(problem.batch));
  if (mask.heads != 1 && mask.heads != problem.kv_heads && mask.heads != problem.query_heads)
    refuse_mask("the mask has " + std::to_string(mask.heads) + " heads; expected 1, kv_heads (" +
                std::to_string(problem.kv_heads) + ") or query_heads (" + std::to_string(problem.query_heads) + ")");
}

void check_moved(const char* option, const Problem& problem) {
  const std::string on_device = " were asked for together on " + to_string(problem.device);
  if (problem.dropout > 0)
    refuse_mask(std::string(option) + " and dropout" + on_device +
                "; dropout belongs to a score's own row and column, which kernels do not see where tokens are moved: "
                "take one of them");
  if (problem.change.bias() != ScoreBias::none)
    refuse_mask(std::string(option) + " and a bias of scores" + on_device +
                ", where tokens are moved and their positions are not: take one of them");
  const ScoreFunction* const function = problem.change.function();
  if (function != nullptr && function->locates())
    refuse_mask(std::string(option) + " and a function of where scores lie" + on_device +
                ", where tokens are moved and their numbers are not: take one of them");
}

void check_tiles(const Kernel& kernel, TileSize tiles) {
  if (tiles == TileSize::small && !kernel.small_tiles())
    throw Error(Status::unsupported, "plan: small tiles were asked for, which " + kernel.info().name +
                                         " has not; take TileSize::automatic or ::large");
}

Features needed_by(const PlanOptions& options) {
  Features needed;
  if (options.deterministic) needed.add(Feature::deterministic);
  if (options.invariant) needed.add(Feature::invariant);
  return needed;
}

const LoweredMask& Plan::mask() const {
  refuse_moved_from();
  if (mask_ == nullptr) refuse_on_device("the mask", problem_);
  return *mask_;
}

void Plan::refuse_moved_from() const {
  if (forward_ == nullptr)
    throw Error(Status::invalid_argument, "the plan was moved from; use the one that it was moved to");
}

const Plan::Choice& Plan::choice(Direction direction) const {
  refuse_moved_from();
  const Choice& chosen = direction == Direction::forward ? *forward_ : *backward_;
  if (chosen.kernel == nullptr) throw Error(Status::unsupported, to_string(direction) + ": " + chosen.refusal);
  return chosen;
}

const TileSchedule& Plan::schedule(Direction direction) const {
  const Choice& chosen = choice(direction);
  if (chosen.schedule == nullptr) refuse_on_device("the schedule", problem_);
  return *chosen.schedule;
}

void Plan::place(TileShape forward, TileShape backward, Executor& executor) {
  constexpr std::int64_t kDropoutGroup = 8;
  const TileShape both{std::lcm(forward.rows, backward.rows), std::lcm(forward.columns, backward.columns)};
  const std::int64_t step = problem_.dropout > 0 ? kDropoutGroup : 1;
  places_ = std::make_shared<const Places>(places(*mask_, unit_of(both), step, executor));
  mask_ = std::shared_ptr<const LoweredMask>(places_, &places_->mask);
}

const KernelInfo& Plan::kernel(Direction direction) const { return choice(direction).kernel->info(); }

std::span<const CompiledKernel> Plan::compiled_kernels(Direction direction) const { return choice(direction).compiled; }

std::size_t Plan::workspace_bytes(Direction direction, int workers) const {
  const Choice& choice = this->choice(direction);
  if (problem_.query_heads == 0) return 0;
  const Plan& seen = PlanAccess::of_kernel(*this, direction);
  const std::size_t gathered =
      PlanAccess::moves_tokens(*this, direction) ? gathered_bytes(seen.problem_, direction) : 0;
  // The caller's memory may start anywhere; what kernels get is aligned.
  return gathered + choice.kernel->workspace_bytes(PlanAccess::problem_in_places(seen), std::max(workers, 1)) +
         kWorkspaceAlignment;
}

Problem PlanAccess::problem_in_places(const Plan& plan) {
  Problem problem = plan.problem_;
  if (plan.places_ == nullptr) return problem;
  problem.query_length = plan.places_->mask.shape().rows;
  problem.key_length = plan.places_->mask.shape().columns;
  return problem;
}

Plan PlanAccess::on_device(const Problem& problem, Visit visit, Choice forward, Choice backward, const DevicePlan& made,
                           std::shared_ptr<const Reordering> reordering) {
  Plan plan;
  plan.problem_ = problem;
  plan.visit_ = visit;
  plan.device_ = std::make_shared<const DevicePlan>(made);
  plan.reordering_ = std::move(reordering);
  plan.forward_ = std::make_shared<const Plan::Choice>(std::move(forward));
  plan.backward_ = std::make_shared<const Plan::Choice>(std::move(backward));
  return plan;
}

Plan PlanAccess::reordered(const Mask& mask, const Problem& problem, PlanOptions options, Executor& executor) {
  check_moved("reorder", problem);
  options.reorder = false;
  Plan made = plan(mask, problem, options, executor);
  const TileShape tile = made.kernel(Direction::forward).tile;
  auto reordering = std::make_shared<const Reordering>(reorder(mask, tile, executor));
  if (reordering->gained) made = plan(reordering->mask, problem, options, executor);
  made.reordering_ = std::move(reordering);
  return made;
}

Plan plan(const Mask& mask, const Problem& problem, const PlanOptions& options, Executor& executor) {
  validate(problem);
  check_mask(mask.shape(), problem);
  if (problem.device.type != DeviceType::cpu) {
    select_kernel({Direction::forward, problem, options.form.value_or(mask.lowered().form()), options.kernel});
    refuse_mask("the problem is on " + to_string(problem.device) +
                "; give a PlanPlace, as a plan for a GPU is made in memory there");
  }
  check_invariant(mask.lowered(), problem, options);
  if (options.reorder) return PlanAccess::reordered(mask, problem, options, executor);
  Plan made;
  made.problem_ = problem;
  made.visit_ = options.visit;
  made.mask_ = std::make_shared<const LoweredMask>(options.form ? lower(mask, *options.form, executor) : lower(mask));
  const MaskForm form = made.mask_->form();
  const Kernel& forward = select_kernel({Direction::forward, problem, form, options.kernel, needed_by(options)});
  const Kernel& backward = select_kernel({Direction::backward, problem, form, options.kernel, needed_by(options)});
  check_tiles(forward, options.forward_tiles);
  check_tiles(backward, options.backward_tiles);
  if (options.invariant) made.place(forward.info().tile, backward.info().tile, executor);
  auto rows = std::make_shared<const TileSchedule>(schedule(*made.mask_, forward.info().tile, options.visit, executor));
  auto columns =
      backward.info().tile == forward.info().tile
          ? rows
          : std::make_shared<const TileSchedule>(schedule(*made.mask_, backward.info().tile, options.visit, executor));
  made.forward_ = std::make_shared<const Plan::Choice>(Plan::Choice{&forward, std::move(rows)});
  made.backward_ = std::make_shared<const Plan::Choice>(Plan::Choice{.kernel = &backward,
                                                                     .schedule = std::move(columns),
                                                                     .query_gradient = !options.skip_query_gradient,
                                                                     .key_gradients = !options.skip_key_gradients});
  return made;
}

}  // namespace flashmask
