// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/dropout.h"
#include "cuda/scores/logarithms.h"
#include "cuda/scores/sinks.h"

namespace flashmask::cuda {

/// What kernels are told about a call's scores.
struct ScoreArguments {
  float scale;               // softmax scale
  float scale_log2;          // softmax scale · log₂ e
  DropoutArguments dropout;  // for kernels with dropout
  SinkView sinks;            // the forward's alone
};

inline ScoreArguments score_arguments(const Problem& problem, const KernelExecution& execution,
                                      const TensorView& sinks = {}) {
  const float scale = static_cast<float>(problem.softmax_scale());
  return {scale, scale * kLog2E, dropout_arguments(problem, execution), sink_view(sinks)};
}

}  // namespace flashmask::cuda
