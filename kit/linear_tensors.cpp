// SPDX-License-Identifier: Apache-2.0
#include "kit/linear_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "flashmask/error.h"
#include "flashmask/nodes.h"
#include "flashmask/reference.h"

namespace flashmask::check {
namespace {

HostTensor keys(const LinearProblem& p) { return {p.dtype, {p.batch, p.length, p.key_heads, p.key_dim}}; }
HostTensor values(const LinearProblem& p) { return {p.dtype, {p.batch, p.length, p.heads, p.value_dim}}; }
HostTensor lines(const LinearProblem& p) { return {DType::f32, {p.batch, p.length, p.heads}}; }

std::optional<HostTensor> drawn(const LinearProblem& p, const DrawGate& draw, RandomNumbers& random) {
  if (!draw) return {};
  HostTensor gates = lines(p);
  for (std::int64_t i = 0; i < gates.size(); ++i) gates.set(i, draw(random));
  return gates;
}

TensorView view(const std::optional<HostTensor>& tensor) { return tensor ? tensor->view() : TensorView{}; }
LinearStates view(const std::optional<HostStates>& states) { return states ? states->view() : LinearStates{}; }
std::vector<double> numbers(const std::optional<HostTensor>& tensor) {
  return tensor ? tensor->values() : std::vector<double>{};
}

double middle(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto at = numbers.begin() + std::ssize(numbers) / 2;
  std::nth_element(numbers.begin(), at, numbers.end());
  return *at;
}

LinearError compare(const char* name, const std::vector<double>& output, const std::vector<double>& reference) {
  double largest = std::numeric_limits<double>::min();
  std::vector<double> errors, sizes;
  for (std::size_t i = 0; i < output.size(); ++i) {
    errors.push_back(std::isfinite(output[i]) ? std::abs(output[i] - reference[i]) : HUGE_VAL);
    sizes.push_back(std::abs(reference[i]));
    largest = std::max(largest, sizes.back());
  }
  const double worst = errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
  return {name, worst / largest, middle(errors) / std::max(middle(sizes), std::numeric_limits<double>::min())};
}

}  // namespace

bool is_tree(const Mask& mask) {
  try {
    (void)nodes(mask);
  } catch (const Error&) {
    return false;
  }
  return true;
}

Gates mild_gates() {
  return {"mild", [](RandomNumbers& random) { return -std::log1p(std::exp(-3 - random.normal())); },
          [](RandomNumbers& random) { return -2 + random.normal(); }};
}

Gates decays() { return {"decays", mild_gates().forget, {}}; }

Gates long_memory() {
  return {"a memory of 1,000 tokens", [](RandomNumbers& random) { return -1e-3F * std::abs(random.normal()); },
          [](RandomNumbers& random) { return -5 + random.normal(); }};
}

std::vector<Regime> gate_regimes() {
  const auto log_sigmoid = [](float x) { return -std::log1p(std::exp(-x)); };
  const auto constant = [](float value) { return [value](RandomNumbers&) { return value; }; };
  const auto normal = [](float mean, float deviation) {
    return [=](RandomNumbers& random) { return mean + deviation * random.normal(); };
  };
  const auto forget = [log_sigmoid](float mean) {
    return [=](RandomNumbers& random) { return log_sigmoid(mean + random.normal()); };
  };
  const auto rare = [log_sigmoid](float value) {
    return [=](RandomNumbers& random) { return random.below(50) == 0 ? value : log_sigmoid(4 + random.normal()); };
  };
  const float infinity = std::numeric_limits<float>::infinity();
  return {{{"none", {}, {}}, false},
          {{"RetNet", constant(std::log(1 - 1.0F / 32)), {}}, false},
          {{"Mamba-2", [](RandomNumbers& r) { return -8e-3F * std::exp(2 * r.normal()); }, {}}, false},
          {{"xLSTM, bias -10", forget(3), normal(-10, 2)}, true},
          {{"resets of -infinity", rare(-infinity), normal(0, 1)}, false},
          {{"resets of -1e6", rare(-1e6F), normal(-2, 1)}, false},
          {{"inputs to e^20", forget(4), normal(0, 5)}, false},
          {{"inputs of 0", forget(3),
            [infinity](RandomNumbers& r) { return r.below(3) == 0 ? -infinity : -3 + r.normal(); }},
           true}};
}

HostStates::HostStates(const LinearProblem& p, std::int64_t count, bool scaled)
    : state(DType::f32, {count, p.heads, p.key_dim, p.value_dim}) {
  if (p.normalize) normalizer.emplace(DType::f32, std::vector<std::int64_t>{count, p.heads, p.key_dim});
  if (scaled) log_scale.emplace(DType::f32, std::vector<std::int64_t>{count, p.heads});
}

LinearStates HostStates::view() const { return {state.view(), check::view(normalizer), check::view(log_scale)}; }

LinearTensors::LinearTensors(const LinearPlan& plan, std::uint64_t seed, const Gates& gates, bool states)
    : q(keys(plan.problem())),
      k(keys(plan.problem())),
      v(values(plan.problem())),
      o(values(plan.problem())),
      grad_o(values(plan.problem())),
      grad_q(keys(plan.problem())),
      grad_k(keys(plan.problem())),
      grad_v(values(plan.problem())) {
  const LinearProblem& p = plan.problem();
  RandomNumbers random(seed);
  for (HostTensor* input : {&q, &k, &v, &grad_o}) input->fill_normal(random);
  log_forget = drawn(p, gates.forget, random);
  log_input = drawn(p, gates.input, random);
  if (log_forget) grad_log_forget = lines(p);
  if (log_input) grad_log_input = lines(p);
  if (!states) return;
  const std::int64_t nodes = std::ssize(plan.nodes().begins);
  initial.emplace(p, plan.roots(), true);
  final.emplace(p, nodes, true);
  grad_final.emplace(p, nodes, false);
  grad_initial.emplace(p, plan.roots(), false);
  for (HostStates* given : {&*initial, &*grad_final}) {
    given->state.fill_normal(random);
    if (given->normalizer) given->normalizer->fill_normal(random);
  }
  for (std::int64_t i = 0; i < initial->log_scale->size(); ++i) initial->log_scale->set(i, std::abs(random.normal()));
}

LinearForwardTensors LinearTensors::forward() const {
  return {q.view(), k.view(),          v.view(), check::view(log_forget), check::view(log_input), check::view(initial),
          o.view(), check::view(final)};
}

LinearBackwardTensors LinearTensors::backward() const {
  return {q.view(),
          k.view(),
          v.view(),
          check::view(log_forget),
          check::view(log_input),
          check::view(initial),
          o.view(),
          grad_o.view(),
          check::view(grad_final),
          grad_q.view(),
          grad_k.view(),
          grad_v.view(),
          check::view(grad_log_forget),
          check::view(grad_log_input),
          check::view(grad_initial)};
}

std::vector<LinearError> linear_errors(const LinearPlan& plan, const Mask& mask, const LinearTensors& t) {
  const std::vector<double> q = t.q.values(), k = t.k.values(), v = t.v.values(), grad_o = t.grad_o.values();
  const std::vector<double> forget = numbers(t.log_forget), input = numbers(t.log_input);
  std::vector<double> state, normalizer, scale, grad_state, grad_normalizer;
  if (t.initial) {
    state = t.initial->state.values();
    normalizer = numbers(t.initial->normalizer);
    scale = numbers(t.initial->log_scale);
    grad_state = t.grad_final->state.values();
    grad_normalizer = numbers(t.grad_final->normalizer);
  }
  const reference::LinearInputs inputs{q, k, v, forget, input, state, normalizer, scale};
  const reference::LinearOutputs out = reference::linear_forward(plan.problem(), mask, inputs);
  const reference::LinearGradients grad =
      reference::linear_backward(plan.problem(), mask, inputs, grad_o, grad_state, grad_normalizer);
  std::vector<LinearError> errors = {compare("o", t.o.values(), out.o), compare("grad_q", t.grad_q.values(), grad.q),
                                     compare("grad_k", t.grad_k.values(), grad.k),
                                     compare("grad_v", t.grad_v.values(), grad.v)};
  if (t.grad_log_forget) errors.push_back(compare("grad_log_forget", t.grad_log_forget->values(), grad.log_forget));
  if (t.grad_log_input) errors.push_back(compare("grad_log_input", t.grad_log_input->values(), grad.log_input));
  if (!t.initial) return errors;
  errors.push_back(compare("state", t.final->state.values(), out.state));
  errors.push_back(compare("log_scale", t.final->log_scale->values(), out.log_scale));
  errors.push_back(compare("grad_state", t.grad_initial->state.values(), grad.state));
  if (t.final->normalizer) {
    errors.push_back(compare("normalizer", t.final->normalizer->values(), out.normalizer));
    errors.push_back(compare("grad_normalizer", t.grad_initial->normalizer->values(), grad.normalizer));
  }
  return errors;
}

}  // namespace flashmask::check
