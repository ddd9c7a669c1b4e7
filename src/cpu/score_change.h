// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/compiler.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

/// What a softcap, ALiBi and a bias tensor do to scores, for register tiles whose lines and lanes are rows and columns
/// of a tile, or columns and rows.
namespace flashmask::cpu {

/// tanh(x) ≈ x · P(x²) / Q(x²) for |x| ≤ 9, beyond which tanh rounds to 1: minimax in the relative error, which is
/// 2.1e-8 before rounding.
inline constexpr float kTanhP[] = {9.99999979e-01f, 1.33810214e-01f, 3.49558308e-03f, 2.06090005e-05f, 1.33545521e-08f};
inline constexpr float kTanhQ[] = {1.0f, 4.67143370e-01f, 2.58769630e-02f, 3.28562661e-04f, 7.77651259e-07f};

/// Positions of a tile's tokens on one side, from `first` on, as floats: `given`, or first + shift onwards. Past the
/// `count` that exist, where nothing is visible, they are 0.
template <class Isa, int kTokens>
struct TilePositions {
  float at[kTokens];

  FLASHMASK_INLINE void read(const float* given, std::int64_t first, std::int64_t shift, int count) {
    for (int i = 0; i < kTokens; ++i)
      at[i] = i >= count ? 0.0f : (given != nullptr ? given[first + i] : static_cast<float>(first + shift + i));
  }
};

/// The changes of one head's scores.
template <class Isa>
class ScoreChange {
  using Vec = typename Isa::Vec;

 public:
  FLASHMASK_INLINE ScoreChange() = default;
  FLASHMASK_INLINE ScoreChange(const HeadSizes& sizes, const HeadBias& bias)
      : softcap_(sizes.softcap),
        to_cap_(sizes.softcap > 0.0f ? sizes.scale / sizes.softcap : 0.0f),
        scale_(sizes.scale),
        slope_(bias.slope),
        biased_(bias.present),
        adds_(bias.values.data != nullptr) {}

  FLASHMASK_INLINE bool changes() const { return caps() || biased_ || adds_; }
  FLASHMASK_INLINE bool caps() const { return softcap_ != 0.0f; }
  FLASHMASK_INLINE bool biases() const { return biased_; }
  /// Whether a bias tensor is added.
  FLASHMASK_INLINE bool adds() const { return adds_; }
  /// The factor that turns what change() leaves, or products where nothing changes, into scores.
  FLASHMASK_INLINE float scale() const { return changes() ? 1.0f : scale_; }

  /// Turns products into changed scores. `lines` and `lanes`: positions of the register tile's; `added`: what is added
  /// to its lines, which lie `added_stride` apart. take_slope(r, v, slope) is given the derivative of each capped score
  /// by product · scale.
  template <int Rows, int Vectors, class TakeSlope>
  FLASHMASK_INLINE void change(Accumulators<Isa, Rows, Vectors>& x, const float* lines, const float* lanes,
                               const float* added, std::int64_t added_stride, const TakeSlope& take_slope) const {
    if (caps()) {
      each(x, [&](auto r, auto v, Vec product) FLASHMASK_INLINE_LAMBDA {
        const Vec bounded = tanh_of(Isa::mul(product, Isa::broadcast(to_cap_)));
        take_slope(r, v, Isa::sub(Isa::broadcast(1.0f), Isa::mul(bounded, bounded)));
        return Isa::mul(bounded, Isa::broadcast(softcap_));
      });
    } else {
      each(x,
           [&](auto, auto, Vec product) FLASHMASK_INLINE_LAMBDA { return Isa::mul(product, Isa::broadcast(scale_)); });
    }
    if (biased_)
      each(x, [&](auto r, auto v, Vec score) FLASHMASK_INLINE_LAMBDA {
        const Vec line = Isa::broadcast(lines[r]), lane = Isa::load(lanes + v * Isa::lanes);
        const Vec distance = Isa::max(Isa::sub(line, lane), Isa::sub(lane, line));
        return Isa::sub(score, Isa::mul(Isa::broadcast(slope_), distance));
      });
    if (adds_)
      each(x, [&](auto r, auto v, Vec score) FLASHMASK_INLINE_LAMBDA {
        return Isa::add(score, Isa::load(added + r * added_stride + v * Isa::lanes));
      });
  }

 private:
  /// Replaces each vector of a register tile by what function(r, v, vector) returns.
  template <int Rows, int Vectors, class Function>
  static FLASHMASK_INLINE void each(Accumulators<Isa, Rows, Vectors>& x, const Function& function) {
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { x.v[r][v] = function(r, v, x.v[r][v]); });
    });
  }

  static FLASHMASK_INLINE Vec tanh_of(Vec x) {
    x = Isa::min(Isa::broadcast(9.0f), Isa::max(Isa::broadcast(-9.0f), x));  // this order of operands keeps a NaN
    const Vec z = Isa::mul(x, x);
    return Isa::div(Isa::mul(x, polynomial(kTanhP, z)), polynomial(kTanhQ, z));
  }
  static FLASHMASK_INLINE Vec polynomial(const float (&c)[5], Vec z) {
    Vec sum = Isa::broadcast(c[4]);
    for (int k = 3; k >= 0; --k) sum = Isa::fma(sum, z, Isa::broadcast(c[k]));
    return sum;
  }

  float softcap_ = 0.0f, to_cap_ = 0.0f, scale_ = 0.0f, slope_ = 0.0f;
  bool biased_ = false, adds_ = false;
};

}  // namespace flashmask::cpu
