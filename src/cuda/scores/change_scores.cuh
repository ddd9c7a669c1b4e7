// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/score_arguments.h"
#include "cuda/scores/softcap.cuh"

/// The two places where a kernel changes scores. A new change is a line in each, and a member of ScoreArguments.
namespace flashmask::cuda {

/// Changes the scores of a tile, ahead of hiding.
template <int kUnits, int kEights>
__device__ __forceinline__ void change_scores(float (&s)[kUnits][kEights][4], const ScoreArguments& score) {
  if (score.to_exponent != 0) cap(s, score.to_exponent);
}

/// Multiplies probabilities by the derivatives of their changed scores, ahead of differentiate().
template <int kUnits, int kEights, class Rows>
__device__ __forceinline__ void follow_changes(float (&p)[kUnits][kEights][4], const ScoreArguments& score,
                                               const Rows& lse_log2) {
  if (score.to_exponent != 0) multiply_by_slopes(p, score.scale_log2, lse_log2);
}

}  // namespace flashmask::cuda
