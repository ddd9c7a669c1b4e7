// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_linear.h"

#include "flashmask/error.h"
#include "flashmask/nodes.h"
#include "kit/linear_tensors.h"
#include "kit/placed_linear.h"

namespace flashmask::cli {
namespace {

constexpr double kStep = 64;  // tokens, of every kernel

void check_tree(const NamedMask& mask) {
  try {
    (void)nodes(mask.mask);
  } catch (const Error& error) {
    throw Error(error.status(), "bench: --linear and " + mask.name + ": " + error.what() + "; see docs/linear.md");
  }
}

}  // namespace

std::vector<LinearRun> linear_runs(const LinearProblem& problem, const std::vector<NamedMask>& masks,
                                   const std::string& kernel, const std::string& direction) {
  for (const NamedMask& mask : masks) check_tree(mask);
  std::vector<LinearRun> runs;
  for (const LinearKernelInfo& info : linear_kernels()) {
    const bool fits = info.device == problem.device.type && info.dtype == problem.dtype &&
                      problem.key_dim <= info.key_dim && problem.value_dim <= info.value_dim;
    if (!fits || !info.name.starts_with(kernel) || !why_not_linear(info.name).empty()) continue;
    for (const NamedMask& mask : masks)
      for (const bool is_forward : {true, false})
        if (direction.empty() || (direction == "forward") == is_forward) runs.push_back({info.name, &mask, is_forward});
  }
  if (!runs.empty()) return runs;
  throw Error(Status::unsupported, "bench: no kernel of linear attention of this machine " +
                                       (kernel.empty() ? "" : "begins with \"" + kernel + "\" and ") + "serves " +
                                       to_string(problem.dtype) + "; see flashmask info");
}

void time_linear(const LinearRun& run, const LinearProblem& problem, std::uint64_t seed,
                 const std::function<void(const std::function<void()>& work)>& time) {
  const LinearPlan plan = linear_plan(run.mask->mask, problem, run.kernel);
  check::Gates gates = check::mild_gates();
  gates.input = {};
  const check::LinearTensors tensors(plan, seed, gates);
  const check::PlacedLinearTensors placed(tensors, problem.device);
  linear_forward(plan, placed.forward());  // the backward reads o
  time([&] { run.is_forward ? linear_forward(plan, placed.forward()) : linear_backward(plan, placed.backward()); });
}

double linear_flops(const LinearProblem& problem, bool is_forward) {
  const auto key = static_cast<double>(problem.key_dim), value = static_cast<double>(problem.value_dim);
  const double tokens = static_cast<double>(problem.batch * problem.length * problem.heads);
  return tokens *
         (is_forward ? 4 * key * value + kStep * (key + value) : 12 * key * value + kStep * (3 * key + 2 * value));
}

}  // namespace flashmask::cli
