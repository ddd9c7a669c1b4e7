// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "plan/linear.h"
#include "plan/tensor_checks.h"

namespace flashmask {
namespace {

/// Checks the tensors of a call against its problem, and keeps them by name for the check of overlaps.
class LinearCheck {
 public:
  LinearCheck(const char* call, const LinearPlanContent& plan)
      : plan_(plan), p_(plan.problem), check_(call, plan.problem.device) {}

  enum class Role : bool { input, output };

  void keys(const char* name, const TensorView& tensor, Role role) {
    check_(name, tensor, p_.dtype, {p_.batch, p_.length, p_.key_heads, p_.key_dim});
    keep(name, tensor, role);
  }
  void values(const char* name, const TensorView& tensor, Role role) {
    check_(name, tensor, p_.dtype, {p_.batch, p_.length, p_.heads, p_.value_dim});
    keep(name, tensor, role);
  }
  void gates(const char* name, const TensorView& tensor, Role role) {
    if (!tensor.present()) return;
    check_(name, tensor, DType::f32, {p_.batch, p_.length, p_.heads});
    keep(name, tensor, role);
  }
  /// All of the states' tensors, or none; their gradients have no scale.
  void states(const std::string& name, const LinearStates& states, std::int64_t count, bool scaled, Role role) {
    const bool given = states.state.present() || states.normalizer.present() || states.log_scale.present();
    if (!given) return;
    part(name + ".state", states.state, {count, p_.heads, p_.key_dim, p_.value_dim}, true, role);
    part(name + ".normalizer", states.normalizer, {count, p_.heads, p_.key_dim}, p_.normalize, role);
    part(name + ".log_scale", states.log_scale, {count, p_.heads}, scaled, role);
  }

  /// Checks what both directions are given.
  template <class Tensors>
  void inputs(const Tensors& t) {
    keys("q", t.q, Role::input);
    keys("k", t.k, Role::input);
    values("v", t.v, Role::input);
    gates("log_forget", t.log_forget, Role::input);
    gates("log_input", t.log_input, Role::input);
    states("initial", t.initial, roots(), true, Role::input);
  }

  void outputs_apart() const { check_outputs(check_, outputs_, inputs_); }
  std::int64_t nodes() const { return std::ssize(plan_.nodes.begins); }
  std::int64_t roots() const { return plan_.roots; }

 private:
  void part(const std::string& name, const TensorView& tensor, const TensorCheck::Shape& shape, bool expected,
            Role role) {
    if (!expected && tensor.present())
      check_.fail(name.c_str(),
                  "is given; expected none: " +
                      std::string(p_.normalize ? "a scale has no gradient" : "the problem does not normalize"));
    if (!expected) return;
    check_(name.c_str(), tensor, DType::f32, shape);
    keep(name, tensor, role);
  }

  void keep(const std::string& name, const TensorView& tensor, Role role) {
    (role == Role::input ? inputs_ : outputs_).push_back({name, tensor});
  }

  const LinearPlanContent& plan_;
  const LinearProblem& p_;
  TensorCheck check_;
  std::vector<NamedTensor> inputs_, outputs_;
};

using Role = LinearCheck::Role;

}  // namespace

void check_tensors(const LinearPlanContent& plan, const LinearForwardTensors& t) {
  LinearCheck check("linear_forward", plan);
  check.inputs(t);
  check.values("o", t.o, Role::output);
  check.states("final", t.final, check.nodes(), true, Role::output);
  check.outputs_apart();
}

void check_tensors(const LinearPlanContent& plan, const LinearBackwardTensors& t) {
  LinearCheck check("linear_backward", plan);
  check.inputs(t);
  check.values("o", t.o, Role::input);
  check.values("grad_o", t.grad_o, Role::input);
  check.states("grad_final", t.grad_final, check.nodes(), false, Role::input);
  check.keys("grad_q", t.grad_q, Role::output);
  check.keys("grad_k", t.grad_k, Role::output);
  check.values("grad_v", t.grad_v, Role::output);
  check.gates("grad_log_forget", t.grad_log_forget, Role::output);
  check.gates("grad_log_input", t.grad_log_input, Role::output);
  check.states("grad_initial", t.grad_initial, check.roots(), false, Role::output);
  check.outputs_apart();
}

}  // namespace flashmask
