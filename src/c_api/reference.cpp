// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reference.h"

#include <algorithm>
#include <array>
#include <vector>

#include "c_api/sized_struct.h"
#include "flashmask/dropout.h"

namespace reference = flashmask::reference;
using flashmask::Mask;
using flashmask::Problem;
using flashmask::ScoreFunction;
using flashmask::ScoreOperand;
using flashmask::c_api::array;
using flashmask::c_api::element_count;
using flashmask::c_api::guard;
using flashmask::c_api::require;

namespace {

/// Element counts of a problem's tensors.
struct Sizes {
  explicit Sizes(const Problem& p)
      : q(size({p.batch, p.query_length, p.query_heads, p.head_dim}, "q")),
        k(size({p.batch, p.key_length, p.kv_heads, p.head_dim}, "k")),
        v(size({p.batch, p.key_length, p.kv_heads, p.value_dim}, "v")),
        o(size({p.batch, p.query_length, p.query_heads, p.value_dim}, "o")),
        lse(size({p.batch, p.query_heads, p.query_length, 1}, "lse")) {}

  std::int64_t q, k, v, o, lse;

 private:
  static std::int64_t size(const std::array<std::int64_t, 4>& sizes, const char* name) {
    return static_cast<std::int64_t>(element_count(sizes, name));
  }
};

/// The inputs of a call of the reference, besides the mask.
class Given {
 public:
  Given(const flashmask_problem* problem, const flashmask_reference_inputs* inputs)
      : problem_(flashmask::c_api::to_problem(problem)) {
    validate(problem_);
    const flashmask_reference_inputs from = flashmask::c_api::read_struct(inputs, "inputs");
    if (problem_.dropout > 0)
      dropout_ = flashmask::dropout_factors(problem_, {from.dropout_seed, from.dropout_offset},
                                            flashmask::c_api::to_place(from.dropout_place, from.dropout_place_size));
    const Sizes sizes(problem_);
    inputs_ = {array(from.q, sizes.q, "inputs.q"),
               array(from.k, sizes.k, "inputs.k"),
               array(from.v, sizes.v, "inputs.v"),
               dropout_,
               optional(from.sinks, from.sink_count, "inputs.sinks"),
               optional(from.alibi_slopes, from.alibi_slope_count, "inputs.alibi_slopes"),
               optional(from.query_positions, from.query_position_count, "inputs.query_positions"),
               optional(from.key_positions, from.key_position_count, "inputs.key_positions"),
               {},
               {},
               from.bias_origin,
               to_operands(from)};
    if (!has_bias_tensor(problem_)) return;
    std::copy_n(from.bias_shape, 4, inputs_.bias_shape.begin());
    inputs_.bias =
        array(from.bias, static_cast<std::int64_t>(element_count(inputs_.bias_shape, "inputs.bias")), "inputs.bias");
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  const Problem& problem() const { return problem_; }
  const reference::Inputs& inputs() const { return inputs_; }

 private:
  std::span<const ScoreOperand> to_operands(const flashmask_reference_inputs& from) {
    const ScoreFunction* const function = problem_.change.function();
    for (std::size_t i = 0; function != nullptr && i < static_cast<std::size_t>(function->operands()); ++i) {
      ScoreOperand& operand = operands_.emplace_back();
      std::copy_n(from.operand_shapes + 4 * i, function->rank(static_cast<int>(i)), operand.shape.begin());
      const std::span<const std::int64_t> sizes(operand.shape.data(),
                                                static_cast<std::size_t>(function->rank(static_cast<int>(i))));
      operand.values = array(from.operands[i], static_cast<std::int64_t>(element_count(sizes, "inputs.operands")),
                             "inputs.operands");
    }
    return operands_;
  }

  static std::span<const double> optional(const double* given, std::int64_t count, const char* name) {
    return given == nullptr ? std::span<const double>() : array(given, count, name);
  }

  Problem problem_;
  std::vector<double> dropout_;
  std::vector<ScoreOperand> operands_;
  reference::Inputs inputs_;
};

/// An array that a result is written to: NULL only when it is empty.
std::span<double> target(double* data, std::int64_t count, const char* name) {
  if (count > 0) require(data, name);
  return {data, static_cast<std::size_t>(count)};
}

}  // namespace

flashmask_status flashmask_reference_forward(const flashmask_mask* mask, const flashmask_problem* problem,
                                             const flashmask_reference_inputs* inputs, double* o, double* lse) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const Sizes sizes(given.problem());
    const std::span<double> to_o = target(o, sizes.o, "o");
    const std::span<double> to_lse = target(lse, sizes.lse, "lse");
    const reference::Outputs outputs = reference::forward(given.problem(), seen, given.inputs());
    std::ranges::copy(outputs.o, to_o.begin());
    std::ranges::copy(outputs.lse, to_lse.begin());
  });
}

flashmask_status flashmask_reference_max_scores(const flashmask_mask* mask, const flashmask_problem* problem,
                                                const flashmask_reference_inputs* inputs, double* max_scores) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const std::span<double> to = target(max_scores, Sizes(given.problem()).lse, "max_scores");
    std::ranges::copy(reference::forward(given.problem(), seen, given.inputs()).max_scores, to.begin());
  });
}

flashmask_status flashmask_reference_forward_tangents(const flashmask_mask* mask, const flashmask_problem* problem,
                                                      const flashmask_reference_inputs* inputs, const double* tangent_q,
                                                      const double* tangent_k, const double* tangent_v,
                                                      double* tangent_o, double* tangent_lse) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const Sizes sizes(given.problem());
    const std::span<double> to_o = target(tangent_o, sizes.o, "tangent_o");
    const std::span<double> to_lse = target(tangent_lse, sizes.lse, "tangent_lse");
    const auto optional = [](const double* tangent, std::int64_t count, const char* name) {
      return array(tangent, tangent == nullptr ? 0 : count, name);
    };
    const reference::Tangents tangents = reference::forward_tangents(
        given.problem(), seen, given.inputs(), optional(tangent_q, sizes.q, "tangent_q"),
        optional(tangent_k, sizes.k, "tangent_k"), optional(tangent_v, sizes.v, "tangent_v"));
    std::ranges::copy(tangents.o, to_o.begin());
    std::ranges::copy(tangents.lse, to_lse.begin());
  });
}

flashmask_status flashmask_reference_backward(const flashmask_mask* mask, const flashmask_problem* problem,
                                              const flashmask_reference_inputs* inputs, const double* grad_o,
                                              const double* grad_lse, double* grad_q, double* grad_k, double* grad_v) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const Sizes sizes(given.problem());
    const std::span<double> to_q = target(grad_q, sizes.q, "grad_q");
    const std::span<double> to_k = target(grad_k, sizes.k, "grad_k");
    const std::span<double> to_v = target(grad_v, sizes.v, "grad_v");
    const std::int64_t lse_size = grad_lse == nullptr ? 0 : sizes.lse;
    const reference::Gradients gradients = reference::backward(
        given.problem(), seen, given.inputs(), array(grad_o, sizes.o, "grad_o"), array(grad_lse, lse_size, "grad_lse"));
    std::ranges::copy(gradients.q, to_q.begin());
    std::ranges::copy(gradients.k, to_k.begin());
    std::ranges::copy(gradients.v, to_v.begin());
  });
}

flashmask_status flashmask_reference_backward_sinks(const flashmask_mask* mask, const flashmask_problem* problem,
                                                    const flashmask_reference_inputs* inputs, const double* grad_o,
                                                    const double* grad_lse, double* grad_sinks) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const Sizes sizes(given.problem());
    const std::span<double> to = target(grad_sinks, std::ssize(given.inputs().sinks), "grad_sinks");
    const std::int64_t lse_size = grad_lse == nullptr ? 0 : sizes.lse;
    const reference::Gradients gradients = reference::backward(
        given.problem(), seen, given.inputs(), array(grad_o, sizes.o, "grad_o"), array(grad_lse, lse_size, "grad_lse"));
    std::ranges::copy(gradients.sinks, to.begin());
  });
}

flashmask_status flashmask_reference_backward_bias(const flashmask_mask* mask, const flashmask_problem* problem,
                                                   const flashmask_reference_inputs* inputs, const double* grad_o,
                                                   const double* grad_lse, double* grad_bias) {
  return guard([&] {
    const Mask& seen = require(mask, "mask").mask;
    const Given given(problem, inputs);
    const Sizes sizes(given.problem());
    const std::span<double> to = target(grad_bias, std::ssize(given.inputs().bias), "grad_bias");
    const std::int64_t lse_size = grad_lse == nullptr ? 0 : sizes.lse;
    const reference::Gradients gradients = reference::backward(
        given.problem(), seen, given.inputs(), array(grad_o, sizes.o, "grad_o"), array(grad_lse, lse_size, "grad_lse"));
    std::ranges::copy(gradients.bias, to.begin());
  });
}
