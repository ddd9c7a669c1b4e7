// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "cpu/compiler.h"
#include "cpu/function_operands.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"
#include "cpu/tanh.h"

/// Functions of scores (ScoreFunction) on register tiles: one loop over the tile for each node, values in the
/// first-level cache.
namespace flashmask::cpu {

/// Values of the tokens of a tile on one side, of all nodes of single tokens that meet others. Those of lines are
/// repeated for all lanes of a vector.
template <class Isa, int kTokens, bool kOfLines>
class SideValues {
 public:
  static constexpr int kRepeat = kOfLines ? Isa::lanes : 1;

  FLASHMASK_INLINE void compute(const FunctionNodes& function, const HeadOperands& operands, bool of_keys,
                                std::int64_t first, int count) {
    if (function.sides(of_keys) == 0) return;
    if constexpr (!kOfLines) {
      compute_sides(function, operands, of_keys, first, count, kTokens, values_);
    } else {
      float once[ScoreFunction::kMaxSides * kTokens];
      compute_sides(function, operands, of_keys, first, count, kTokens, once);
      for (int i = 0; i < function.sides(of_keys) * kTokens; ++i)
        Isa::store(values_ + i * Isa::lanes, Isa::broadcast(once[i]));
    }
  }

  /// The values of a node with slot 0, from a token on.
  FLASHMASK_INLINE const float* at(int token) const { return values_ + token * kRepeat; }
  static constexpr std::int64_t kSlotStride = kTokens * kRepeat;

 private:
  alignas(64) float values_[ScoreFunction::kMaxSides * kTokens * kRepeat];
};

/// What a register tile's function is given beside the scores.
struct FunctionPlace {
  const float *lines, *lanes;  ///< side values of the first line and lane, of slot 0
  std::int64_t line_slot_stride, lane_slot_stride;
  bool keys_are_lines;
  int existing_lines;  ///< of the tile; those behind them get −∞
  TileArgument bias;
};

template <class Isa>
class TileFunction {
  using Vec = typename Isa::Vec;

 public:
  FLASHMASK_INLINE TileFunction() = default;
  FLASHMASK_INLINE TileFunction(const FunctionNodes& function, const HeadOperands& operands)
      : function_(function), operands_(operands) {}

  FLASHMASK_INLINE bool present() const { return function_.nodes != nullptr; }
  FLASHMASK_INLINE bool reads_bias() const { return function_.bias_slope >= 0; }

  /// Replaces lines × width scores by what the function makes of them, and stores its derivatives where they are not
  /// null. Not inlined: it would stand in the kernel for every size of register tiles.
  [[gnu::noinline]] void compute(float* x, int lines, int width, const FunctionPlace& place, float* by_score,
                                 float* by_bias) const {
    Work work(*this, x, lines, width, place, by_score, by_bias);
    work.compute();
    if (place.existing_lines >= lines) return;
    work.fill(x, -std::numeric_limits<float>::infinity());
    if (by_score != nullptr) work.fill(by_score, 0.0f);
    if (by_bias != nullptr) work.fill(by_bias, 0.0f);
  }

 private:
  /// Scores of a register tile.
  static constexpr int kMost = Isa::row_block * kPanel<Isa>;

  struct Work {
    const TileFunction& of;
    float* const scores;
    const int lines, width;
    const FunctionPlace& place;
    float *const by_score, *const by_bias;
    alignas(64) float slots[ScoreFunction::kMaxSlots][kMost];
    alignas(64) float numbers[4][Isa::lanes];  ///< constants among the arguments of an operation

    FLASHMASK_INLINE Work(const TileFunction& function, float* x, int line_count, int line_width,
                          const FunctionPlace& at, float* score_slopes, float* bias_slopes)
        : of(function),
          scores(x),
          lines(line_count),
          width(line_width),
          place(at),
          by_score(score_slopes),
          by_bias(bias_slopes) {}

    FLASHMASK_INLINE bool has_slopes() const { return by_score != nullptr || by_bias != nullptr; }

    FLASHMASK_INLINE void compute() {
      const FunctionNodes& function = of.function_;
      const int count = has_slopes() ? function.count : function.value + 1;
      for (int i = 0; i < count; ++i)
        if (is_computed(i)) operate(function.nodes[i], result(i));
      if (by_score != nullptr && !is_computed(function.slope)) copy(function.slope, by_score);
      if (by_bias != nullptr) copy(function.bias_slope, by_bias);
      if (has_slopes()) copy(function.value, scores);
    }

    FLASHMASK_INLINE bool is_computed(int i) const {
      const ScoreNode& node = of.function_.nodes[i];
      return node.of_pairs() && node.count > 0;
    }

    /// Where the values of a node are stored: those that callers want, in their memory, if nothing else is read there.
    FLASHMASK_INLINE float* result(int i) {
      if (i == of.function_.slope && by_score != nullptr) return by_score;
      if (i == of.function_.value && !has_slopes()) return scores;
      return slots[of.function_.nodes[i].slot];
    }

    FLASHMASK_INLINE void copy(int at, float* to) {
      each(to, argument(at, 0), [](Vec x) FLASHMASK_INLINE_LAMBDA { return x; });
    }
    FLASHMASK_INLINE void fill(float* to, float behind) {
      for (int line = place.existing_lines > 0 ? place.existing_lines : 0; line < lines; ++line)
        for (int lane = 0; lane < width; lane += Isa::lanes)
          Isa::store(to + line * width + lane, Isa::broadcast(behind));
    }

    FLASHMASK_INLINE TileArgument argument(int at, int i) {
      const ScoreNode& node = of.function_.nodes[at];
      if (node.op == ScoreOp::score) return {scores, width, 1};
      if (node.op == ScoreOp::bias || node.op == ScoreOp::distance) return place.bias;
      if (node.of_pairs()) return {result(at), width, 1};
      if (node.op == ScoreOp::number) {
        Isa::store(numbers[i], Isa::broadcast(static_cast<float>(node.number)));
        return {numbers[i], 0, 0};
      }
      if (node.of_keys() == place.keys_are_lines)
        return {place.lines + node.slot * place.line_slot_stride, Isa::lanes, 0};
      return {place.lanes + node.slot * place.lane_slot_stride, 0, 1};
    }

    static FLASHMASK_INLINE Vec load(const TileArgument& of, int line, int lane) {
      return Isa::load(of.at + line * of.line_stride + lane * of.lane_step);
    }

    /// to[i] = function(values of the arguments).
    template <class Function>
    FLASHMASK_INLINE void each(float* to, const TileArgument& a, const Function& function) {
      for (int line = 0; line < lines; ++line)
        for (int lane = 0; lane < width; lane += Isa::lanes)
          Isa::store(to + line * width + lane, function(load(a, line, lane)));
    }
    template <class Function>
    FLASHMASK_INLINE void each(float* to, const TileArgument& a, const TileArgument& b, const Function& function) {
      for (int line = 0; line < lines; ++line)
        for (int lane = 0; lane < width; lane += Isa::lanes)
          Isa::store(to + line * width + lane, function(load(a, line, lane), load(b, line, lane)));
    }
    /// each() by a function of one number, for those that have none of vectors.
    FLASHMASK_INLINE void each_number(float* to, const TileArgument& a, float (*function)(float)) {
      for (int line = 0; line < lines; ++line)
        for (int lane = 0; lane < width; ++lane)
          to[line * width + lane] = function(a.at[line * a.line_stride + lane * a.lane_step]);
    }

    void operate(const ScoreNode& node, float* to) {
      TileArgument args[4];
      for (int i = 0; i < node.count; ++i) args[i] = argument(node.args[i], i);
      const TileArgument &a = args[0], &b = args[1];
      const Vec zero = Isa::broadcast(0.0f), one = Isa::broadcast(1.0f);
      switch (node.op) {
        case ScoreOp::read:
          return read_entries(of.operands_.operands[node.operand], args, lines, width, to);
        case ScoreOp::neg:
          return each(to, a, [&](Vec x) FLASHMASK_INLINE_LAMBDA { return Isa::sub(zero, x); });
        case ScoreOp::abs:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return absolute(x); });
        case ScoreOp::floor:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return floor_of(x); });
        case ScoreOp::sqrt:
          return each_number(to, a, sqrtf);
        case ScoreOp::erf:
          return each_number(to, a, erff);
        case ScoreOp::log:
          return each_number(to, a, logf);
        case ScoreOp::exp:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return exp_of(x); });
        case ScoreOp::tanh:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return tanh_of<Isa>(x); });
        case ScoreOp::sin:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return sin_of_quarters(x, 0.0f); });
        case ScoreOp::cos:
          return each(to, a, [](Vec x) FLASHMASK_INLINE_LAMBDA { return sin_of_quarters(x, 1.0f); });
        case ScoreOp::add:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::add(x, y); });
        case ScoreOp::sub:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::sub(x, y); });
        case ScoreOp::mul:
        case ScoreOp::both:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::mul(x, y); });
        case ScoreOp::div:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::div(x, y); });
        case ScoreOp::min:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::min(x, y); });
        case ScoreOp::max:
        case ScoreOp::either:
          return each(to, a, b, [](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::max(x, y); });
        case ScoreOp::lt:
          return each(to, a, b,
                      [&](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::select(Isa::greater(y, x), one, zero); });
        case ScoreOp::le:
          return each(to, a, b,
                      [&](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA { return Isa::select(Isa::greater(x, y), zero, one); });
        case ScoreOp::eq:
          return each(to, a, b, [&](Vec x, Vec y) FLASHMASK_INLINE_LAMBDA {
            return Isa::select(Isa::greater(x, y) | Isa::greater(y, x), zero, one);
          });
        case ScoreOp::no:
          return each(to, a, [&](Vec x) FLASHMASK_INLINE_LAMBDA { return Isa::sub(one, x); });
        default:
          return choose(to, args);
      }
    }

    FLASHMASK_INLINE void choose(float* to, const TileArgument (&args)[4]) {
      for (int line = 0; line < lines; ++line)
        for (int lane = 0; lane < width; lane += Isa::lanes)
          Isa::store(to + line * width + lane,
                     Isa::select(Isa::greater(load(args[0], line, lane), Isa::broadcast(0.0f)),
                                 load(args[1], line, lane), load(args[2], line, lane)));
    }
  };

  static FLASHMASK_INLINE Vec absolute(Vec x) { return Isa::max(Isa::sub(Isa::broadcast(0.0f), x), x); }

  /// Adding 1.5 · 2^23 rounds to a whole number; larger numbers are whole already.
  static FLASHMASK_INLINE Vec floor_of(Vec x) {
    const Vec magic = Isa::broadcast(0x1.8p23f);
    Vec sum = Isa::add(x, magic);
    Isa::make_opaque(sum);
    const Vec near = Isa::sub(sum, magic);
    const Vec whole = Isa::sub(near, Isa::select(Isa::greater(near, x), Isa::broadcast(1.0f), Isa::broadcast(0.0f)));
    return Isa::select(Isa::greater(Isa::broadcast(0x1p22f), absolute(x)), whole, x);
  }

  /// e^x by 2^(x · log2(e)), with what the product loses by rounding added to first order.
  static FLASHMASK_INLINE Vec exp_of(Vec x) {
    const Vec log2e = Isa::broadcast(1.44269504088896340736f);
    const Vec product = Isa::mul(x, log2e);
    const Vec lost =
        Isa::fma(x, Isa::broadcast(1.925963033500e-8f), Isa::fma(x, log2e, Isa::sub(Isa::broadcast(0.0f), product)));
    const Vec power = Isa::exp2(product);
    const Vec better = Isa::fma(power, Isa::mul(lost, Isa::broadcast(0.69314718055994530942f)), power);
    // Past the ends of float32 there is nothing to add.
    return Isa::select(Isa::greater(Isa::broadcast(88.0f), absolute(x)), better, power);
  }

  /// sin(x + quarters · π / 2) to 2e-7 for |x| up to 1e5: x less a multiple of π / 2, in three parts, then polynomials
  /// for sine and cosine on ± π / 4.
  static FLASHMASK_INLINE Vec sin_of_quarters(Vec x, float quarters) {
    const Vec turns = Isa::mul(x, Isa::broadcast(0.63661977236758134308f));
    const Vec n = floor_of(Isa::add(turns, Isa::broadcast(0.5f)));
    Vec r = Isa::fma(n, Isa::broadcast(-1.5703125f), x);
    r = Isa::fma(n, Isa::broadcast(-4.837512969970703125e-4f), r);
    r = Isa::fma(n, Isa::broadcast(-7.54978995489188216e-8f), r);
    const Vec z = Isa::mul(r, r);
    Vec sine = Isa::fma(z, Isa::broadcast(2.7557319e-6f), Isa::broadcast(-1.98412698e-4f));
    sine = Isa::fma(sine, z, Isa::broadcast(8.33333333e-3f));
    sine = Isa::fma(sine, z, Isa::broadcast(-1.66666667e-1f));
    sine = Isa::fma(Isa::mul(sine, z), r, r);
    Vec cosine = Isa::fma(z, Isa::broadcast(2.48015873e-5f), Isa::broadcast(-1.38888889e-3f));
    cosine = Isa::fma(cosine, z, Isa::broadcast(4.16666667e-2f));
    cosine = Isa::fma(cosine, z, Isa::broadcast(-0.5f));
    cosine = Isa::fma(cosine, z, Isa::broadcast(1.0f));
    const Vec all = Isa::add(n, Isa::broadcast(quarters));
    const Vec half = floor_of(Isa::mul(all, Isa::broadcast(0.5f)));
    const Vec odd = Isa::fma(half, Isa::broadcast(-2.0f), all);
    const Vec negative = Isa::fma(floor_of(Isa::mul(half, Isa::broadcast(0.5f))), Isa::broadcast(-2.0f), half);
    const Vec size = Isa::select(Isa::greater(odd, Isa::broadcast(0.5f)), cosine, sine);
    return Isa::select(Isa::greater(negative, Isa::broadcast(0.5f)), Isa::sub(Isa::broadcast(0.0f), size), size);
  }

  FunctionNodes function_;
  HeadOperands operands_;
};

}  // namespace flashmask::cpu
