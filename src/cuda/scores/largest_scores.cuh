// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/changes.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda {

/// The largest scores of a warp's rows, exact where running maxima lag behind. The four lanes that share the rows of a
/// unit find the same maxima; each keeps one of them, so that all of them take one register.
template <int kUnits>
class LargestScores {
  static_assert(kUnits <= 2);

 public:
  __device__ __forceinline__ void clear() { largest_ = -INFINITY; }

  /// `found`: the largest of a tile's scores in each of the lane's rows.
  __device__ __forceinline__ void follow(const float (&found)[kUnits][2]) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int row = 0; row < 2; ++row)
        if (number() == 2 * unit + row) largest_ = fmaxf(largest_, found[unit][row]);
  }

  /// Writes those of rows below `end` of a head, if the call asks for them; `first` is the warp's first row, and
  /// `scale` turns numbers into scores.
  __device__ __forceinline__ void store(const MaxScoresView& to, int batch, int head, int first, int end,
                                        float scale) const {
    const int row = first + 8 * number() + lane_index() / 4;
    if (to.data != nullptr && number() < 2 * kUnits && row < end)
      to.data[batch * to.batch + head * to.head + row] = largest_ * scale;
  }

 private:
  /// Which of its quad's rows the lane keeps: row lane / 4 + 8 · number of the warp's.
  static __device__ __forceinline__ int number() { return static_cast<int>(lane_index()) % 4; }

  float largest_;
};

/// Where nobody asks.
template <int kUnits>
class NoLargestScores {
 public:
  __device__ __forceinline__ void clear() {}
  __device__ __forceinline__ void follow(const float (&)[kUnits][2]) {}
  __device__ __forceinline__ void store(const MaxScoresView&, int, int, int, int, float) const {}
};

template <class Shape, int kUnits>
using LargestScoresOf = std::conditional_t<KeepsMaxScores<Shape>, LargestScores<kUnits>, NoLargestScores<kUnits>>;

}  // namespace flashmask::cuda
