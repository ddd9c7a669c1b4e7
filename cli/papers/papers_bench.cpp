// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers_bench.h"

#include <algorithm>
#include <cstring>

#include "cli/base/device_timing.h"
#include "flashmask/builders.h"
#include "flashmask/explain.h"
#include "flashmask/reorder.h"
#include "kit/device_memory.h"

namespace flashmask::cli {
namespace {

/// Most of the time goes into runs that compute or read every score.
constexpr Repeats kRepeats{.enough_seconds = 0.2, .long_seconds = 0.4};
/// Every ratio is relative to the unmasked runs.
constexpr Repeats kBaselineRepeats{.enough_seconds = 0.1, .long_seconds = 0.4, .long_runs = 2};

/// Counts at the tile shape of the forward; a GPU plan counts on the device and does not report its counts.
TileCounts tiles_of(const Mask& mask, const Plan& plan) {
  if (plan.problem().device.type == DeviceType::cpu) return plan.schedule(Direction::forward).counts();
  return schedule(mask.lowered(), plan.kernel(Direction::forward).tile).counts();
}

}  // namespace

Problem PapersBench::problem_of(const PapersCase& one) const {
  Problem problem;
  problem.batch = place_.batch();
  problem.query_length = problem.key_length = one.tokens;
  problem.query_heads = problem.kv_heads = place_.heads();
  problem.head_dim = problem.value_dim = one.head_dim;
  problem.dtype = place_.dtype();
  problem.device = place_.device;
  return problem;
}

PlanOptions PapersBench::options(PlanOptions asked) const {
  asked.kernel = place_.kernel;
  return asked;
}

const check::PlacedTensors& PapersBench::tensors(const Problem& problem) {
  std::unique_ptr<Tensors>& kept = tensors_[{problem.query_length, problem.head_dim}];
  if (!kept) kept = std::make_unique<Tensors>(problem, seed_);
  return kept->placed;
}

Execution PapersBench::execution_of(const Plan& plan) {
  if (place_.on_gpu()) return {};
  const int workers = default_executor().workers();
  const std::size_t bytes =
      std::max(plan.workspace_bytes(Direction::forward, workers), plan.workspace_bytes(Direction::backward, workers));
  if (workspace_.size() < bytes) workspace_.resize(bytes);
  return {.workspace = workspace_.data(), .workspace_bytes = workspace_.size()};
}

double PapersBench::time(const std::function<void()>& work, const Repeats& repeats) const {
  return place_.on_gpu() ? time_on_device(work).sustained : fastest_seconds(work, repeats);
}

double PapersBench::time_preparation(const std::function<void()>& work) const {
  return fastest_seconds(
      [&] {
        work();
        if (place_.on_gpu()) check::synchronize_device();
      },
      kRepeats);
}

BothDirections PapersBench::time(check::PlacedPlan& plan, const Repeats& repeats) {
  const check::PlacedTensors& all = tensors(plan.plan().problem());
  const Execution execution = execution_of(plan.plan());
  BackwardTensors gradients = all.backward();
  gradients.grad_lse = {};
  BothDirections seconds;
  seconds.forward = time([&] { plan.forward(all.forward(), execution); }, repeats);
  seconds.backward = time([&] { plan.backward(gradients, execution); }, repeats);
  return seconds;
}

BothDirections PapersBench::time(const Mask& mask, const Problem& problem, const PlanOptions& asked,
                                 const Repeats& repeats) {
  check::PlacedPlan planned(mask, problem, options(asked));
  return time(planned, repeats);
}

BothDirections PapersBench::unmasked(const PapersCase& one, const Problem& problem) {
  const auto [kept, is_new] = unmasked_.try_emplace({{one.tokens, one.head_dim}, one.causal});
  if (is_new) {
    const Mask mask = one.causal ? masks::causal(one.tokens, one.tokens) : masks::full(one.tokens, one.tokens);
    kept->second = time(mask, problem, {}, kBaselineRepeats);
  }
  return kept->second;
}

void PapersBench::time_reordered(const Mask& mask, const Problem& problem, PapersResult& result) {
  ReorderedResult reordered;
  std::optional<check::PlacedPlan> planned;
  reordered.prepare_seconds =
      result.mask_seconds + seconds_of([&] { planned.emplace(mask, problem, options({.reorder = true})); });
  const Reordering& found = *planned->plan().reordering();
  result.reordering = found.why;
  if (!found.gained) return;
  reordered.active_tiles = tiles_of(found.mask, planned->plan()).active();
  reordered.seconds = time(*planned, kRepeats);
  result.reordered = reordered;
}

double PapersBench::time_copies(const Problem& problem) const {
  const auto bytes =
      static_cast<std::size_t>(problem.batch * problem.query_length * problem.query_heads * problem.head_dim) *
      size_in_bytes(problem.dtype);
  constexpr int kTensors = 4, kCopies = 3;
  if (place_.on_gpu()) {
    check::DeviceMemory from(bytes), to(bytes);
    return kTensors * kCopies * time([&] { to.copy(from); }, kRepeats);
  }
  const std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  return kTensors * kCopies * time([&] { std::memcpy(to.data(), from.data(), bytes); }, kRepeats);
}

PapersResult PapersBench::run(const PapersCase& one) {
  PapersResult result{.asked = one, .place = place_};
  const Problem problem = problem_of(one);
  std::optional<Mask> mask;
  std::optional<check::PlacedPlan> planned;
  result.mask_seconds = fastest_seconds([&] { mask = one.build(); }, kRepeats);
  result.plan_seconds = time_preparation([&] { planned.emplace(*mask, problem, options()); });
  result.form = planned->plan().kernel(Direction::forward).predicate;
  result.tiles = tiles_of(*mask, planned->plan());
  result.density = explain(*mask).density;
  result.unmasked = unmasked(one, problem);
  result.ours = time(*planned, kRepeats);
  if (one.kept_blocks > 0) {
    result.copies_seconds = time_copies(problem);
  } else {
    result.every_tile = time(*mask, problem, {.visit = Visit::all}, kRepeats);
    time_reordered(*mask, problem, result);
  }
  return result;
}

}  // namespace flashmask::cli
