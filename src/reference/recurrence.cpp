// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/checks.h"
#include "flashmask/reference.h"
#include "plan/linear.h"

namespace flashmask::reference {
namespace {

using Vector = std::vector<double>;

double dot(const double* a, const double* b, std::int64_t n) { return std::transform_reduce(a, a + n, b, 0.0); }

void add_scaled(double* sum, double factor, const double* x, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) sum[c] += factor * x[c];
}

/// The state behind a token, or its gradient: e^scale · (C, n).
struct State {
  Vector c, n;  ///< [key_dim × value_dim], [key_dim]
  double scale = 0;
  bool empty = true;  ///< nothing lies before: C and n are zero
};

void require_size(const char* name, std::size_t given, std::size_t expected, bool optional) {
  if (given == expected || (optional && given == 0)) return;
  refuse("reference: " + std::string(name) + " holds " + counted(given, "element") + "; the problem needs " +
         grouped(static_cast<std::int64_t>(expected)));
}

/// The sizes of a call's arrays, and where its nodes are.
struct Call {
  const LinearProblem& p;
  Nodes nodes;
  std::vector<std::int64_t> root_of, node_of;  ///< [tokens]: the root that begins there, the node that ends there; −1

  Call(const LinearProblem& problem, const Mask& mask) : p(problem) {
    validate(p);
    nodes = linear_nodes(mask, p);
    root_of.assign(tokens(), -1);
    node_of.assign(tokens(), -1);
    for (std::size_t i = 0, root = 0; i < nodes.begins.size(); ++i) {
      if (nodes.parents[i] < 0) root_of[static_cast<std::size_t>(nodes.begins[i])] = static_cast<std::int64_t>(root++);
      node_of[static_cast<std::size_t>(nodes.ends[i]) - 1] = static_cast<std::int64_t>(i);
    }
  }

  std::size_t tokens() const { return static_cast<std::size_t>(p.batch * p.length); }
  std::size_t count(std::int64_t elements) const { return static_cast<std::size_t>(elements); }
  std::size_t roots() const {
    return static_cast<std::size_t>(std::count(nodes.parents.begin(), nodes.parents.end(), -1));
  }
  std::size_t keys() const { return count(p.batch * p.length * p.key_heads * p.key_dim); }
  std::size_t values() const { return count(p.batch * p.length * p.heads * p.value_dim); }
  std::size_t gates() const { return count(p.batch * p.length * p.heads); }
  std::size_t states(std::size_t lines) const { return lines * count(p.heads * p.key_dim * p.value_dim); }
  std::size_t normalizers(std::size_t lines) const { return p.normalize ? lines * count(p.heads * p.key_dim) : 0; }

  void check(const LinearInputs& in) const {
    require_size("q", in.q.size(), keys(), false);
    require_size("k", in.k.size(), keys(), false);
    require_size("v", in.v.size(), values(), false);
    require_size("log_forget", in.log_forget.size(), gates(), true);
    require_size("log_input", in.log_input.size(), gates(), true);
    const bool begins = !in.state.empty();
    require_size("state", in.state.size(), states(roots()), true);
    require_size("normalizer", in.normalizer.size(), begins ? normalizers(roots()) : 0, false);
    require_size("log_scale", in.log_scale.size(), begins ? roots() * count(p.heads) : 0, false);
  }
};

/// One head of one batch entry: the recurrence, its tape, and the way back through it.
class Head {
 public:
  Head(const Call& call, const LinearInputs& in, std::int64_t batch, std::int64_t head)
      : call_(call),
        p_(call.p),
        in_(in),
        first_(batch * p_.length),
        head_(head),
        behind_(count()),
        gain_(count()),
        weight_(count()) {
    for (std::int64_t t = 0; t < p_.length; ++t)
      if (is_in_a_node(t)) advance(t);
  }

  /// Writes the head's part of the outputs.
  void output(LinearOutputs& out) const {
    for (std::int64_t t = 0; t < p_.length; ++t) {
      if (!is_in_a_node(t)) continue;
      const Row row = read(t);
      for (std::int64_t c = 0; c < p_.value_dim; ++c) out.o[value(t) + c] = row.num[c] / row.divisor;
      const std::int64_t node = call_.node_of[token(t)];
      if (node >= 0) put(behind_[at(t)], node, out.state, out.normalizer, &out.log_scale);
    }
  }

  /// Adds the head's part to the gradients.
  void differentiate(std::span<const double> grad_o, std::span<const double> grad_state,
                     std::span<const double> grad_normalizer, LinearGradients& grad) const {
    std::vector<State> of_state(count());
    for (std::int64_t t = p_.length - 1; t >= 0; --t) {
      if (!is_in_a_node(t)) continue;
      State& own = of_state[at(t)];
      if (own.empty) own = zero();
      add_final(call_.node_of[token(t)], grad_state, grad_normalizer, own);
      step_back(t, grad_o, own, grad);
      const std::int64_t before = predecessor(t);
      for (double& x : own.c) x *= gain_[at(t)];
      for (double& x : own.n) x *= gain_[at(t)];
      if (before >= 0)
        add(own, of_state[at(before)]);
      else
        put(own, call_.root_of[token(t)], grad.state, grad.normalizer, nullptr);
      own = State{};
    }
  }

 private:
  /// o before its division, and what divides it; for the gradient, Σ W s as well, or 0 where it does not decide.
  struct Row {
    Vector num;
    double divisor, deciding;
  };

  std::size_t count() const { return static_cast<std::size_t>(p_.length); }
  static std::size_t at(std::int64_t t) { return static_cast<std::size_t>(t); }
  std::size_t token(std::int64_t t) const { return static_cast<std::size_t>(first_ + t); }
  std::int64_t key(std::int64_t t) const {
    return ((first_ + t) * p_.key_heads + head_ / (p_.heads / p_.key_heads)) * p_.key_dim;
  }
  std::int64_t value(std::int64_t t) const { return ((first_ + t) * p_.heads + head_) * p_.value_dim; }
  std::int64_t gate(std::int64_t t) const { return (first_ + t) * p_.heads + head_; }
  std::int64_t predecessor(std::int64_t t) const {
    const std::int64_t before = call_.nodes.predecessors[token(t)];
    return before < 0 ? -1 : before - first_;
  }
  bool is_in_a_node(std::int64_t t) const { return predecessor(t) >= 0 || call_.root_of[token(t)] >= 0; }
  State zero() const { return {Vector(at(p_.key_dim * p_.value_dim)), Vector(at(p_.key_dim)), 0, false}; }

  State before(std::int64_t t) const {
    const std::int64_t last = predecessor(t);
    if (last >= 0) return behind_[at(last)];
    State state = zero();
    state.empty = in_.state.empty();
    if (state.empty) return state;
    const std::int64_t line = call_.root_of[token(t)] * p_.heads + head_;
    std::copy_n(&in_.state[at(line * p_.key_dim * p_.value_dim)], state.c.size(), state.c.begin());
    if (p_.normalize) std::copy_n(&in_.normalizer[at(line * p_.key_dim)], state.n.size(), state.n.begin());
    state.scale = in_.log_scale[at(line)];
    return state;
  }

  void advance(std::int64_t t) {
    State state = before(t);
    const double forget = in_.log_forget.empty() ? 0 : in_.log_forget[at(gate(t))];
    const double input = in_.log_input.empty() ? 0 : in_.log_input[at(gate(t))];
    const double scale = std::max({0.0, forget + state.scale, input});
    gain_[at(t)] = std::exp(forget + state.scale - scale);
    weight_[at(t)] = std::exp(input - scale);
    for (double& x : state.c) x *= gain_[at(t)];
    for (double& x : state.n) x *= gain_[at(t)];
    const double* k = &in_.k[at(key(t))];
    for (std::int64_t d = 0; d < p_.key_dim; ++d)
      add_scaled(&state.c[at(d * p_.value_dim)], weight_[at(t)] * k[d], &in_.v[at(value(t))], p_.value_dim);
    add_scaled(state.n.data(), weight_[at(t)], k, p_.key_dim);
    state.scale = scale;
    state.empty = false;
    behind_[at(t)] = std::move(state);
  }

  Row read(std::int64_t t) const {
    const State& state = behind_[at(t)];
    const double* q = &in_.q[at(key(t))];
    Row row{Vector(at(p_.value_dim)), std::exp(-state.scale), 0};
    for (std::int64_t d = 0; d < p_.key_dim; ++d)
      add_scaled(row.num.data(), p_.query_scale() * q[d], &state.c[at(d * p_.value_dim)], p_.value_dim);
    const double sum = p_.query_scale() * dot(q, state.n.data(), p_.key_dim);
    if (!p_.normalize || std::abs(sum) < row.divisor) return row;
    row.divisor = std::abs(sum);
    row.deciding = sum;
    return row;
  }

  /// `own` comes with the gradient of the state behind token t from what follows, and leaves with all of it.
  void step_back(std::int64_t t, std::span<const double> grad_o, State& own, LinearGradients& grad) const {
    const Row row = read(t);
    const State& state = behind_[at(t)];
    const double *q = &in_.q[at(key(t))], *k = &in_.k[at(key(t))], *v = &in_.v[at(value(t))];
    const double scale = p_.query_scale();
    Vector g(grad_o.begin() + value(t), grad_o.begin() + value(t) + p_.value_dim);
    for (double& x : g) x /= row.divisor;
    // ∂ of |sum| through o = num / |sum|.
    const double of_sum = row.deciding == 0 ? 0 : -dot(g.data(), row.num.data(), p_.value_dim) / row.deciding;
    for (std::int64_t d = 0; d < p_.key_dim; ++d) {
      const std::int64_t line = d * p_.value_dim;
      grad.q[at(key(t) + d)] += scale * (dot(&state.c[at(line)], g.data(), p_.value_dim) + of_sum * state.n[at(d)]);
      add_scaled(&own.c[at(line)], scale * q[d], g.data(), p_.value_dim);
      own.n[at(d)] += scale * of_sum * q[d];
      const double of_k = weight_[at(t)] * (dot(&own.c[at(line)], v, p_.value_dim) + own.n[at(d)]);
      grad.k[at(key(t) + d)] += of_k;
      grad.log_input[at(gate(t))] += k[d] * of_k;
      add_scaled(&grad.v[at(value(t))], weight_[at(t)] * k[d], &own.c[at(line)], p_.value_dim);
    }
    const State last = before(t);
    grad.log_forget[at(gate(t))] = gain_[at(t)] * (dot(own.c.data(), last.c.data(), std::ssize(last.c)) +
                                                   dot(own.n.data(), last.n.data(), std::ssize(last.n)));
  }

  static void add(const State& from, State& to) {
    if (to.empty) {
      to = from;
      to.empty = false;
      return;
    }
    add_scaled(to.c.data(), 1, from.c.data(), std::ssize(from.c));
    add_scaled(to.n.data(), 1, from.n.data(), std::ssize(from.n));
  }

  void add_final(std::int64_t node, std::span<const double> state, std::span<const double> normalizer,
                 State& own) const {
    if (node < 0) return;
    const std::int64_t line = node * p_.heads + head_;
    if (!state.empty()) add_scaled(own.c.data(), 1, &state[at(line * p_.key_dim * p_.value_dim)], std::ssize(own.c));
    if (!normalizer.empty()) add_scaled(own.n.data(), 1, &normalizer[at(line * p_.key_dim)], std::ssize(own.n));
  }

  void put(const State& from, std::int64_t place, Vector& state, Vector& normalizer, Vector* scale) const {
    const std::int64_t line = place * p_.heads + head_;
    std::ranges::copy(from.c, state.begin() + line * p_.key_dim * p_.value_dim);
    if (p_.normalize) std::ranges::copy(from.n, normalizer.begin() + line * p_.key_dim);
    if (scale != nullptr) (*scale)[at(line)] = from.scale;
  }

  const Call& call_;
  const LinearProblem& p_;
  const LinearInputs& in_;
  std::int64_t first_, head_;
  std::vector<State> behind_;  // each token
  Vector gain_, weight_;       // of the state before a token, and of k vᵀ of the token itself, in the state behind it
};

template <class Body>
void for_each_head(const Call& call, const LinearInputs& in, const Body& body) {
  for (std::int64_t b = 0; b < call.p.batch; ++b)
    for (std::int64_t h = 0; h < call.p.heads; ++h) body(Head(call, in, b, h));
}

}  // namespace

LinearOutputs linear_forward(const LinearProblem& problem, const Mask& mask, const LinearInputs& in) {
  const Call call(problem, mask);
  call.check(in);
  const std::size_t nodes = call.nodes.begins.size();
  LinearOutputs out{Vector(call.values()), Vector(call.states(nodes)), Vector(call.normalizers(nodes)),
                    Vector(nodes * call.count(problem.heads))};
  for_each_head(call, in, [&](const Head& head) { head.output(out); });
  return out;
}

LinearGradients linear_backward(const LinearProblem& problem, const Mask& mask, const LinearInputs& in,
                                std::span<const double> grad_o, std::span<const double> grad_state,
                                std::span<const double> grad_normalizer) {
  const Call call(problem, mask);
  call.check(in);
  const std::size_t nodes = call.nodes.begins.size(), roots = call.roots();
  require_size("grad_o", grad_o.size(), call.values(), false);
  require_size("grad_state", grad_state.size(), call.states(nodes), true);
  require_size("grad_normalizer", grad_normalizer.size(), call.normalizers(nodes), true);
  LinearGradients grad{Vector(in.q.size()),
                       Vector(in.k.size()),
                       Vector(in.v.size()),
                       Vector(call.gates()),
                       Vector(call.gates()),
                       Vector(call.states(roots)),
                       Vector(call.normalizers(roots))};
  for_each_head(call, in, [&](const Head& head) { head.differentiate(grad_o, grad_state, grad_normalizer, grad); });
  return grad;
}

}  // namespace flashmask::reference
