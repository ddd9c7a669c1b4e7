// SPDX-License-Identifier: Apache-2.0
#include "plan/linear.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/error.h"
#include "plan/registry.h"

namespace flashmask {
namespace {

void require(bool accepted, const char* field, std::int64_t given, const std::string& expected) {
  if (!accepted)
    throw Error(Status::invalid_argument,
                std::string("linear_attention: ") + field + " is " + std::to_string(given) + "; expected " + expected);
}

/// Appends numbers of tokens or nodes, moved on by `by`; −1, which stands for none, stays.
void append_moved(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& numbers, std::int64_t by) {
  for (const std::int64_t number : numbers) to.push_back(number < 0 ? number : number + by);
}

/// Returns the nodes of a batch whose entries all have the given ones.
Nodes repeated(const Nodes& one, std::int64_t batch) {
  const std::int64_t tokens = std::ssize(one.predecessors), count = std::ssize(one.begins);
  Nodes all;
  for (std::int64_t b = 0; b < batch && tokens > 0; ++b) {
    append_moved(all.begins, one.begins, b * tokens);
    append_moved(all.ends, one.ends, b * tokens);
    append_moved(all.parents, one.parents, b * count);
    append_moved(all.levels, one.levels, 0);
    append_moved(all.predecessors, one.predecessors, b * tokens);
  }
  return all;
}

std::vector<LinearTree> trees_of(const Nodes& nodes) {
  std::vector<LinearTree> trees;
  for (std::int64_t i = 0; i < std::ssize(nodes.begins); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (nodes.parents[at] < 0) trees.push_back({i, 0, std::ssize(trees), 0});
    LinearTree& tree = trees.back();
    ++tree.nodes;
    tree.tokens = nodes.ends[at] - nodes.begins[static_cast<std::size_t>(tree.first_node)];
  }
  return trees;
}

std::vector<Span> padding_of(const Nodes& nodes) {
  std::vector<Span> padding;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t begin) {
    if (begin > end) padding.push_back({end, begin});
  };
  for (std::size_t i = 0; i < nodes.begins.size(); ++i) {
    add(nodes.begins[i]);
    end = nodes.ends[i];
  }
  add(std::ssize(nodes.predecessors));
  return padding;
}

/// A prefix that begins with the whole name of an instruction set asks for it.
std::string refusal(const LinearKernel& kernel, const std::string& prefix) {
  if (!kernel.info().name.starts_with(prefix)) return "its name does not begin with \"" + prefix + "\"";
  const std::string reason = kernel.refusal();
  return reason.empty() && prefix.empty() ? kernel.reservation() : reason;
}

/// Returns the best kernel of a direction whose name begins with a prefix, null if there is none, and says why the
/// others before it are not taken.
const LinearKernel* find(const LinearProblem& problem, Direction direction, const std::string& prefix,
                         std::string& reasons) {
  for (const LinearKernel* kernel : linear_kernel_table()) {
    if (kernel->info().device != problem.device.type || kernel->info().dtype != problem.dtype) continue;
    std::string reason = refusal(*kernel, prefix);
    if (reason.empty()) reason = kernel->refusal(problem, direction);
    if (reason.empty() && prefix.empty()) reason = kernel->reservation(problem, direction);
    if (reason.empty()) return kernel;
    reasons += "\n  " + kernel->info().name + ": " + reason;
  }
  return nullptr;
}

std::string no_kernel(const LinearProblem& problem, Direction direction, std::string reasons) {
  if (reasons.empty() && problem.device.type != DeviceType::cpu)
    reasons = problem.dtype == DType::f32 ? " GPUs compute bfloat16 and float16: give those, or CPU tensors"
                                          : " this build has no CUDA: give CPU tensors";
  return "linear_attention: no " + to_string(direction) + " kernel of this build serves " + to_string(problem.dtype) +
         " on " + to_string(problem.device) + " here:" + reasons;
}

void choose(LinearPlanContent& plan, const std::string& prefix) {
  std::string reasons;
  plan.forward.kernel = find(plan.problem, Direction::forward, prefix, reasons);
  if (plan.forward.kernel == nullptr)
    throw Error(Status::unsupported, no_kernel(plan.problem, Direction::forward, reasons));
  reasons.clear();
  plan.backward.kernel = find(plan.problem, Direction::backward, prefix, reasons);
  // What the kernels that were named do not serve, others do.
  if (plan.backward.kernel == nullptr && !prefix.empty())
    plan.backward.kernel = find(plan.problem, Direction::backward, "", reasons);
  if (plan.backward.kernel == nullptr) plan.backward_refusal = no_kernel(plan.problem, Direction::backward, reasons);
}

void prepare(LinearPlanContent& plan) {
  LinearChoice &forward = plan.forward, &backward = plan.backward;
  forward.prepared = forward.kernel->prepare(plan);
  if (backward.kernel == forward.kernel)
    backward.prepared = forward.prepared;
  else if (backward.kernel != nullptr)
    backward.prepared = backward.kernel->prepare(plan);
}

/// Returns the kernel of a plan's backward; throws where there is none.
const LinearKernel& backward_kernel_of(const LinearPlanContent& plan) {
  if (plan.backward.kernel == nullptr) throw Error(Status::unsupported, plan.backward_refusal);
  return *plan.backward.kernel;
}

}  // namespace

float LinearProblem::query_scale() const {
  return scale.has_value() ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_dim)));
}

void validate(const LinearProblem& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::string dim = "1 … " + std::to_string(kMaxHeadDim);
  require(p.batch >= 0 && p.batch <= kMost, "batch", p.batch, "0 … 2147483647");
  require(p.length >= 0 && p.length <= kMost, "length", p.length, "0 … 2147483647 tokens");
  require(p.batch * p.length <= kMost, "batch x length", p.batch * p.length, "at most 2147483647 tokens");
  require(p.key_heads >= 0, "key_heads", p.key_heads, "0 or more");
  if (p.key_heads == 0)
    require(p.heads == 0, "heads", p.heads, "0, as key_heads is 0");
  else
    require(p.heads >= 1 && p.heads % p.key_heads == 0, "heads", p.heads,
            "a multiple of key_heads, which is " + std::to_string(p.key_heads));
  require(p.key_dim >= 1 && p.key_dim <= kMaxHeadDim, "key_dim", p.key_dim, dim);
  require(p.value_dim >= 1 && p.value_dim <= kMaxHeadDim, "value_dim", p.value_dim, dim);
  if (!std::isfinite(p.query_scale()))
    throw Error(Status::invalid_argument,
                "linear_attention: scale is not finite; expected a number, or nothing for 1/sqrt(key_dim)");
}

Nodes linear_nodes(const Mask& mask, const LinearProblem& problem) {
  const MaskShape& shape = mask.shape();
  if (shape.rows != problem.length || shape.columns != problem.length ||
      (shape.batch != 1 && shape.batch != problem.batch))
    throw Error(Status::invalid_argument,
                "linear_attention: " + mask.description() + " has batch " + std::to_string(shape.batch) + ", " +
                    std::to_string(shape.rows) + " rows and " + std::to_string(shape.columns) +
                    " columns; expected batch 1 or " + std::to_string(problem.batch) + ", and " +
                    std::to_string(problem.length) + " rows and columns, the tokens of q");
  Nodes found;
  try {
    found = nodes(mask);
  } catch (const Error& error) {
    throw Error(error.status(), std::string("linear_attention: ") + error.what() +
                                    " (docs/linear.md lists the masks that linear attention takes)");
  }
  return shape.batch == problem.batch ? found : repeated(found, problem.batch);
}

const LinearPlanContent& LinearPlan::content() const {
  if (content_ == nullptr)
    throw Error(
        Status::invalid_argument,
        "linear_attention: the plan is empty, perhaps since it was moved from; use one that linear_plan() made");
  return *content_;
}

const LinearProblem& LinearPlan::problem() const { return content().problem; }
const Nodes& LinearPlan::nodes() const { return content().nodes; }
std::int64_t LinearPlan::roots() const { return content().roots; }
const std::string& LinearPlan::kernel() const { return content().forward.kernel->info().name; }
const std::string& LinearPlan::backward_kernel() const { return backward_kernel_of(content()).info().name; }

LinearPlan linear_plan(const Mask& mask, const LinearProblem& problem, const std::string& kernel) {
  validate(problem);
  LinearPlanContent made;
  made.problem = problem;
  choose(made, kernel);
  made.nodes = linear_nodes(mask, problem);
  made.trees = trees_of(made.nodes);
  made.roots = std::ssize(made.trees);
  // The longest first.
  std::ranges::sort(made.trees, {}, [](const LinearTree& tree) { return std::pair(-tree.tokens, tree.root); });
  made.padding = padding_of(made.nodes);
  if (problem.heads != 0) prepare(made);
  return LinearPlan(std::make_shared<const LinearPlanContent>(std::move(made)));
}

std::vector<LinearKernelInfo> linear_kernels() {
  std::vector<LinearKernelInfo> all;
  for (const LinearKernel* kernel : linear_kernel_table()) all.push_back(kernel->info());
  return all;
}

std::string why_not_linear(const std::string& kernel) {
  for (const LinearKernel* each : linear_kernel_table())
    if (each->info().name == kernel) return refusal(*each, "");
  throw Error(Status::invalid_argument, "why_not_linear: \"" + kernel + "\" is no kernel of this build");
}

std::size_t linear_workspace_bytes(const LinearPlan& plan, const LinearForwardTensors& tensors) {
  return plan.content().forward.kernel->workspace_bytes(plan.content(), tensors);
}
std::size_t linear_workspace_bytes(const LinearPlan& plan, const LinearBackwardTensors& tensors) {
  return backward_kernel_of(plan.content()).workspace_bytes(plan.content(), tensors);
}

void linear_forward(const LinearPlan& plan, const LinearForwardTensors& tensors, const Execution& execution) {
  check_tensors(plan.content(), tensors);
  if (plan.problem().heads != 0) plan.content().forward.kernel->forward(plan.content(), tensors, execution);
}

void linear_backward(const LinearPlan& plan, const LinearBackwardTensors& tensors, const Execution& execution) {
  check_tensors(plan.content(), tensors);
  if (plan.problem().heads != 0) backward_kernel_of(plan.content()).backward(plan.content(), tensors, execution);
}

}  // namespace flashmask
