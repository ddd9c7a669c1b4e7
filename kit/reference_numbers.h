// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "flashmask/reference.h"
#include "kit/host_tensor.h"

namespace flashmask::check {

/// A call's tensors in double precision, as the reference takes them.
class ReferenceNumbers {
 public:
  /// `dropout`: the factors of dropout_factors(), or empty.
  explicit ReferenceNumbers(const AttentionTensors& tensors, std::vector<double> dropout = {})
      : q_(tensors.q.values()),
        k_(tensors.k.values()),
        v_(tensors.v.values()),
        dropout_(std::move(dropout)),
        sinks_(tensors.sinks ? tensors.sinks->values() : std::vector<double>()),
        alibi_(tensors),
        bias_(tensors),
        operands_(tensors),
        bias_origin_(tensors.bias_origin) {}

  /// Views of these numbers.
  reference::Inputs inputs() const {
    return {q_,
            k_,
            v_,
            dropout_,
            sinks_,
            alibi_.slopes,
            alibi_.query_positions,
            alibi_.key_positions,
            bias_.values,
            bias_.shape,
            bias_origin_,
            operands_.operands};
  }

 private:
  std::vector<double> q_, k_, v_, dropout_, sinks_;
  AlibiNumbers alibi_;
  BiasNumbers bias_;
  OperandNumbers operands_;
  std::int64_t bias_origin_;
};

}  // namespace flashmask::check
