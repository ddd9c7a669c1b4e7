// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/compiler.h"
#include "cpu/function_tile.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

/// What a ScoreChange does to scores, for register tiles whose lines and lanes are rows and columns of a tile, or
/// columns and rows.
namespace flashmask::cpu {

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

/// What a register tile of scores is given: positions of its lines and lanes, and what is added to its lines, which lie
/// `added_stride` apart.
struct AddedScores {
  const float *lines, *lanes, *added;
  std::int64_t added_stride;
  FunctionPlace function;
};

/// Derivatives of a register tile's changed scores, in lines: by the score, but for HeadSizes::gradient_scale, and by
/// what the bias adds. Null: they are not wanted.
struct ScoreSlopes {
  float *by_score, *by_bias;
};

/// The change of one head's scores. A cap, a factor behind it and a bias, which any of them may be missing, are
/// computed in registers; any other chain of steps, step by step over a copy of the register tile in the first-level
/// cache.
template <class Isa>
class TileChange {
  using Vec = typename Isa::Vec;
  using Kind = ScoreStep::Kind;

 public:
  FLASHMASK_INLINE TileChange() = default;
  FLASHMASK_INLINE TileChange(const HeadSizes& sizes, const HeadBias& bias)
      : steps_(sizes.steps),
        count_(sizes.step_count),
        scale_(sizes.scale),
        bias_factor_(sizes.bias_factor),
        slope_(bias.slope),
        biased_(bias.present),
        adds_(bias.values.data != nullptr),
        function_(sizes.function, bias.operands) {
    int known = 0;
    if (is(known, Kind::cap)) {
      to_cap_ = scale_ / static_cast<float>(steps_[known].number);
      bounded_to_ = static_cast<float>(steps_[known++].number);
      if (is(known, Kind::multiply)) bounded_to_ *= static_cast<float>(steps_[known++].number);
    }
    known += is(known, Kind::add) ? 1 : 0;
    by_steps_ = known < count_;
  }

  FLASHMASK_INLINE bool changes() const { return count_ > 0; }
  /// Whether change() gives slopes by the score; without a cap they are 1.
  FLASHMASK_INLINE bool has_slopes() const { return by_steps_ || bounded_to_ != 0.0f; }
  /// Whether it gives slopes by the bias.
  FLASHMASK_INLINE bool has_bias_slopes() const { return by_steps_ && adds_; }
  FLASHMASK_INLINE bool biases() const { return biased_; }
  /// Whether a function changes the scores.
  FLASHMASK_INLINE bool computes() const { return function_.present(); }
  /// Whether a bias tensor is added.
  FLASHMASK_INLINE bool adds() const { return adds_; }
  /// The factor that turns what change() leaves, or products where nothing changes, into scores.
  FLASHMASK_INLINE float scale() const { return changes() ? 1.0f : scale_; }

  /// Turns products into changed scores.
  template <int Rows, int Vectors>
  FLASHMASK_INLINE void change(Accumulators<Isa, Rows, Vectors>& x, const AddedScores& with,
                               const ScoreSlopes& slopes) const {
    if (computes()) {
      alignas(64) float tile[Rows][Vectors * Isa::lanes];
      const Vec scale = Isa::broadcast(scale_);
      each(x, [&](auto r, auto v, Vec product) FLASHMASK_INLINE_LAMBDA {
        Isa::store(tile[r] + v * Isa::lanes, Isa::mul(product, scale));
        return product;
      });
      FunctionPlace place = with.function;
      place.bias = {with.added, with.added_stride, 1};
      function_.compute(tile[0], Rows, Vectors * Isa::lanes, place, slopes.by_score,
                        function_.reads_bias() ? slopes.by_bias : nullptr);
      each(x, [&](auto r, auto v, Vec) FLASHMASK_INLINE_LAMBDA { return Isa::load(tile[r] + v * Isa::lanes); });
      return;
    }
    if (by_steps_) {
      alignas(64) float tile[Rows][Vectors * Isa::lanes];  // a copy: x stays in registers where there are no more steps
      each(x, [&](auto r, auto v, Vec product) FLASHMASK_INLINE_LAMBDA {
        Isa::store(tile[r] + v * Isa::lanes, product);
        return product;
      });
      take_steps(tile[0], Rows, Vectors * Isa::lanes, with, slopes);
      each(x, [&](auto r, auto v, Vec) FLASHMASK_INLINE_LAMBDA { return Isa::load(tile[r] + v * Isa::lanes); });
      return;
    }
    if (bounded_to_ != 0.0f) {
      each(x, [&](auto r, auto v, Vec product) FLASHMASK_INLINE_LAMBDA {
        const Vec bounded = tanh_of<Isa>(Isa::mul(product, Isa::broadcast(to_cap_)));
        if (slopes.by_score != nullptr)
          Isa::store(slopes.by_score + (r * Vectors + v) * Isa::lanes, slope_of_tanh(bounded));
        return Isa::mul(bounded, Isa::broadcast(bounded_to_));
      });
    } else {
      each(x,
           [&](auto, auto, Vec product) FLASHMASK_INLINE_LAMBDA { return Isa::mul(product, Isa::broadcast(scale_)); });
    }
    if (biased_)
      each(x, [&](auto r, auto v, Vec score)
                  FLASHMASK_INLINE_LAMBDA { return Isa::sub(score, penalty(with, r, v * Isa::lanes)); });
    if (adds_)
      each(x, [&](auto r, auto v, Vec score) FLASHMASK_INLINE_LAMBDA {
        return Isa::add(score, Isa::load(with.added + r * with.added_stride + v * Isa::lanes));
      });
  }

 private:
  FLASHMASK_INLINE bool is(int step, Kind kind) const { return step < count_ && steps_[step].kind == kind; }

  /// Replaces each vector of a register tile by what function(r, v, vector) returns.
  template <int Rows, int Vectors, class Function>
  static FLASHMASK_INLINE void each(Accumulators<Isa, Rows, Vectors>& x, const Function& function) {
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { x.v[r][v] = function(r, v, x.v[r][v]); });
    });
  }

  /// Takes all steps over `lines` lines of `width` products in memory, each over the whole tile before the next. Scores
  /// are factor · x throughout, so that multiplying costs nothing. Not inlined: it would stand in the kernel for every
  /// size of register tiles.
  [[gnu::noinline]] void take_steps(float* x, int lines, int width, const AddedScores& with,
                                    const ScoreSlopes& slopes) const {
    const auto each_vector = [&](const auto& function) FLASHMASK_INLINE_LAMBDA {
      for (int line = 0; line < lines; ++line)
        for (int lane = 0; lane < width; lane += Isa::lanes) function(line, lane, line * width + lane);
    };
    const auto fill = [&](float* to, float value) FLASHMASK_INLINE_LAMBDA {
      if (to != nullptr)
        each_vector([&](int, int, int i) FLASHMASK_INLINE_LAMBDA { Isa::store(to + i, Isa::broadcast(value)); });
    };
    float* const by_bias = adds_ ? slopes.by_bias : nullptr;
    bool behind_bias = false;
    float factor = scale_;
    fill(slopes.by_score, 1.0f);
    for (int step = 0; step < count_; ++step) {
      const float number = static_cast<float>(steps_[step].number);
      if (is(step, Kind::multiply)) {
        factor *= number;
      } else if (is(step, Kind::cap)) {
        each_vector([&](int, int, int i) FLASHMASK_INLINE_LAMBDA {
          const Vec y = tanh_of<Isa>(Isa::mul(Isa::load(x + i), Isa::broadcast(factor / number)));
          Isa::store(x + i, y);
          // A bias that the mask hides may be NaN, whose slope is then 0.
          const Vec of_tanh = slope_of_tanh(y), zero = Isa::broadcast(0.0f);
          const Vec slope = Isa::select(Isa::greater(of_tanh, zero), of_tanh, zero);
          if (slopes.by_score != nullptr) multiply(slopes.by_score + i, slope);
          if (by_bias != nullptr && behind_bias) multiply(by_bias + i, slope);
        });
        factor = number;
      } else {
        each_vector([&](int line, int lane, int i) FLASHMASK_INLINE_LAMBDA {
          const Vec score = Isa::mul(Isa::load(x + i), Isa::broadcast(factor));
          Isa::store(x + i, biased_ ? Isa::sub(score, penalty(with, line, lane))
                                    : Isa::add(score, Isa::load(with.added + line * with.added_stride + lane)));
        });
        factor = 1.0f;
        behind_bias = true;
        fill(by_bias, bias_factor_);
      }
    }
    each_vector([&](int, int, int i)
                    FLASHMASK_INLINE_LAMBDA { Isa::store(x + i, Isa::mul(Isa::load(x + i), Isa::broadcast(factor))); });
  }

  static FLASHMASK_INLINE void multiply(float* x, Vec factor) { Isa::store(x, Isa::mul(Isa::load(x), factor)); }

  /// What ALiBi takes from the scores of a line, from `lane` on.
  FLASHMASK_INLINE Vec penalty(const AddedScores& with, int at_line, int at_lane) const {
    const Vec line = Isa::broadcast(with.lines[at_line]), lane = Isa::load(with.lanes + at_lane);
    return Isa::mul(Isa::broadcast(slope_), Isa::max(Isa::sub(line, lane), Isa::sub(lane, line)));
  }

  static FLASHMASK_INLINE Vec slope_of_tanh(Vec y) { return Isa::sub(Isa::broadcast(1.0f), Isa::mul(y, y)); }

  const ScoreStep* steps_ = nullptr;
  int count_ = 0;
  float scale_ = 0.0f, bias_factor_ = 1.0f, to_cap_ = 0.0f, slope_ = 0.0f;
  float bounded_to_ = 0.0f;  ///< what the tanh is multiplied by; 0: there is no cap that is computed in registers
  bool biased_ = false, adds_ = false, by_steps_ = false;
  TileFunction<Isa> function_;
};

}  // namespace flashmask::cpu
