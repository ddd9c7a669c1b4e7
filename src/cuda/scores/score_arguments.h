// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/alibi.h"
#include "cuda/scores/bias.h"
#include "cuda/scores/dropout.h"
#include "cuda/scores/logarithms.h"
#include "cuda/scores/sinks.h"

namespace flashmask::cuda {

/// What kernels are told about a call's scores.
struct ScoreArguments {
  float scale;       // softmax scale
  float scale_log2;  // what turns changed scores into powers of two: softmax scale · log₂ e, cap · log₂ e where scores
                     // are capped, 1 where a bias tensor is added, which leaves powers of two
  float to_exponent;  // 2 log₂ e · softmax scale / cap (softcap.cuh); 0: scores are not capped
  AlibiArguments alibi;
  BiasArguments bias;
  DropoutArguments dropout;  // for kernels with dropout
  SinkView sinks;            // the forward's alone
};

inline ScoreArguments score_arguments(const Problem& problem, const KernelExecution& execution,
                                      const TensorView& sinks = {}, const AlibiTensors& alibi = {},
                                      const BiasTensor& bias = {}) {
  const auto scale = static_cast<float>(problem.softmax_scale()), cap = static_cast<float>(problem.change.cap());
  const float of_bounded = cap > 0 ? cap : scale;
  return {.scale = scale,
          .scale_log2 = has_bias_tensor(problem) ? 1 : of_bounded * kLog2E,
          .to_exponent = cap > 0 ? 2 * kLog2E * (scale / cap) : 0,
          .alibi = alibi_arguments(problem, alibi, of_bounded),
          .bias = bias_arguments(problem, bias, of_bounded),
          .dropout = dropout_arguments(problem, execution),
          .sinks = sink_view(sinks)};
}

}  // namespace flashmask::cuda
