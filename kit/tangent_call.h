// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/dropout.h"
#include "flashmask/reference.h"
#include "kit/host_tensor.h"
#include "kit/random_numbers.h"
#include "kit/reference_numbers.h"

namespace flashmask::check {

/// A call's tensors, random tangents of q, k and v, those of o and lse that a kernel computes, and what the reference
/// says.
class TangentCall {
 public:
  explicit TangentCall(const Problem& problem, Sinks sinks = Sinks::none)
      : tensors(problem, 11, sinks), problem_(problem) {
    RandomNumbers random(12);
    for (HostTensor* each : {&of_q, &of_k, &of_v}) each->fill_normal(random);
  }

  TangentTensors views() const {
    const ForwardTensors of_forward = tensors.forward();
    return {.q = of_forward.q,
            .k = of_forward.k,
            .v = of_forward.v,
            .o = of_forward.o,
            .lse = of_forward.lse,
            .tangent_q = of_q.view(),
            .tangent_k = of_k.view(),
            .tangent_v = of_v.view(),
            .tangent_o = of_o.view(),
            .tangent_lse = of_lse.view(),
            .sinks = of_forward.sinks,
            .alibi = of_forward.alibi,
            .bias = of_forward.bias,
            .operands = of_forward.operands};
  }

  /// Overwrites with NaN what earlier runs left.
  void clear_outputs() {
    tensors.clear_outputs();
    of_o.fill_nan();
    of_lse.fill_nan();
  }

  /// `place`: as dropout_factors() takes it.
  reference::Tangents expected(const Mask& mask, const DropoutState& state,
                               std::span<const std::int32_t> place = {}) const {
    const ReferenceNumbers numbers(tensors, dropout_factors(problem_, state, place));
    const reference::Inputs inputs = numbers.inputs();
    return reference::forward_tangents(problem_, mask, inputs, of_q.values(), of_k.values(), of_v.values());
  }

  AttentionTensors tensors;

 private:
  static HostTensor like(const HostTensor& tensor) {
    const TensorView view = tensor.view();
    return {view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}};
  }
  Problem problem_;

 public:
  HostTensor of_q = like(tensors.q), of_k = like(tensors.k), of_v = like(tensors.v), of_o = like(tensors.o),
             of_lse = like(tensors.lse);
};

/// Returns the largest error of a tangent, over the largest value that is expected, or 1.
inline double tangent_error(const HostTensor& got, const std::vector<double>& want) {
  double error = 0, largest = 1;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double expected = want[static_cast<std::size_t>(i)];
    const double here = std::abs(got.at(i) - expected);
    error = here <= error ? error : here;  // keeps a NaN
    largest = std::max(largest, std::abs(expected));
  }
  return error / largest;
}

/// Returns the largest tangent_error() that a dtype may have (docs/tangents.md).
inline double tangent_tolerance(DType dtype) {
  return dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1.5e-2;
}

}  // namespace flashmask::check
