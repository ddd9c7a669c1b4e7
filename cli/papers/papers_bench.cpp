#include "cli/papers/papers_bench.h"

#include <algorithm>
#include <cstring>

#include "flashmask/builders.h"
#include "flashmask/explain.h"
#include "flashmask/reorder.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kHeads = 4;
/// Most of the time goes to runs that compute or read every score.
constexpr Repeats kRepeats{.enough_seconds = 0.2, .long_seconds = 0.4};
/// Every ratio is held against the unmasked runs.
constexpr Repeats kBaselineRepeats{.enough_seconds = 0.1, .long_seconds = 0.4, .long_runs = 2};

Problem problem_of(const PapersCase& one) {
  Problem problem;
  problem.query_length = problem.key_length = one.tokens;
  problem.query_heads = problem.kv_heads = kHeads;
  problem.head_dim = problem.value_dim = one.head_dim;
  return problem;
}

}  // namespace

const check::AttentionTensors& PapersBench::tensors(const Problem& problem) {
  std::unique_ptr<check::AttentionTensors>& kept = tensors_[{problem.query_length, problem.head_dim}];
  if (!kept) kept = std::make_unique<check::AttentionTensors>(problem, seed_);
  return *kept;
}

Execution PapersBench::execution_of(const Plan& plan) {
  const int workers = default_executor().workers();
  const std::size_t bytes =
      std::max(plan.workspace_bytes(Direction::forward, workers), plan.workspace_bytes(Direction::backward, workers));
  if (workspace_.size() < bytes) workspace_.resize(bytes);
  return {.workspace = workspace_.data(), .workspace_bytes = workspace_.size()};
}

BothDirections PapersBench::time(const Plan& plan, const Repeats& repeats) {
  const check::AttentionTensors& all = tensors(plan.problem());
  const Execution execution = execution_of(plan);
  const ForwardTensors inputs = all.forward();
  BackwardTensors gradients = all.backward();
  gradients.grad_lse = {};
  BothDirections seconds;
  seconds.forward = fastest_seconds([&] { forward(plan, inputs, execution); }, repeats);
  seconds.backward = fastest_seconds([&] { backward(plan, gradients, execution); }, repeats);
  return seconds;
}

BothDirections PapersBench::unmasked(const PapersCase& one, const Problem& problem) {
  const auto [kept, is_new] = unmasked_.try_emplace({{one.tokens, one.head_dim}, one.causal});
  if (is_new) {
    const Mask mask = one.causal ? masks::causal(one.tokens, one.tokens) : masks::full(one.tokens, one.tokens);
    kept->second = time(plan(mask, problem), kBaselineRepeats);
  }
  return kept->second;
}

void PapersBench::time_reordered(const Mask& mask, const Problem& problem, PapersResult& result) {
  ReorderedResult reordered;
  std::optional<Plan> planned;
  reordered.prepare_seconds =
      result.mask_seconds + seconds_of([&] { planned = plan(mask, problem, {.reorder = true}); });
  result.reordering = planned->reordering()->why;
  if (!planned->reordering()->gained) return;
  reordered.active_tiles = planned->schedule(Direction::forward).counts().active();
  reordered.seconds = time(*planned, kRepeats);
  result.reordered = reordered;
}

double PapersBench::time_copies(const Problem& problem) {
  const auto floats = static_cast<std::size_t>(problem.query_length * problem.query_heads * problem.head_dim);
  const std::vector<float> from(floats, 1.0F);
  std::vector<float> to(floats);
  constexpr int kTensors = 4, kCopies = 3;
  return kTensors * kCopies *
         fastest_seconds([&] { std::memcpy(to.data(), from.data(), floats * sizeof(float)); }, kRepeats);
}

PapersResult PapersBench::run(const PapersCase& one) {
  PapersResult result{.asked = one};
  const Problem problem = problem_of(one);
  std::optional<Mask> mask;
  std::optional<Plan> planned;
  result.mask_seconds = fastest_seconds([&] { mask = one.build(); }, kRepeats);
  result.plan_seconds = fastest_seconds([&] { planned = plan(*mask, problem); }, kRepeats);
  result.form = planned->mask().form();
  result.tiles = planned->schedule(Direction::forward).counts();
  result.density = explain(*mask).density;
  result.unmasked = unmasked(one, problem);
  result.ours = time(*planned, kRepeats);
  if (one.kept_blocks > 0) {
    result.copies_seconds = time_copies(problem);
  } else {
    result.every_tile = time(plan(*mask, problem, {.visit = Visit::all}), kRepeats);
    time_reordered(*mask, problem, result);
  }
  return result;
}

}  // namespace flashmask::cli
