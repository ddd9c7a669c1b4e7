// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/language_standard.h"

namespace flashmask {

/// What a node of a ScoreFunction computes. Values are numbers, or conditions where said.
enum class ScoreOp : std::uint8_t {
  number,    ///< a constant
  score,     ///< the score before the function
  bias,      ///< what BiasTensor has for this score
  distance,  ///< what a BiasTensor of distances has for this score
  b,         ///< batch entry
  h,         ///< query head
  q,         ///< number of the query in the call, from 0
  k,         ///< number of the key in the call, from 0
  read,      ///< an entry of an operand; its arguments are the indices, cut off to whole numbers inside the operand
  neg,
  abs,
  floor,
  sqrt,
  exp,
  log,
  tanh,
  erf,
  sin,
  cos,
  add,
  sub,
  mul,
  div,
  min,
  max,
  lt,      ///< a condition: the first is less than the second
  le,      ///< a condition: less or equal
  eq,      ///< a condition: equal
  no,      ///< a condition: the other one does not hold
  both,    ///< a condition: two hold
  either,  ///< a condition: one of two holds
  where,   ///< the second argument where the first, a condition, holds, else the third
};

/// One node of a ScoreFunction. Nodes lie behind their arguments.
struct ScoreNode {
  /// What a value depends on, as bits of `depends`.
  static constexpr std::uint8_t kBatch = 1, kHead = 2, kQuery = 4, kKey = 8, kScore = 16;

  ScoreOp op = ScoreOp::number;
  std::uint8_t count = 0;    ///< arguments
  std::uint8_t operand = 0;  ///< of a read
  std::uint8_t depends = 0;  ///< kScore also stands for biases
  std::int16_t args[4] = {};
  /// Where kernels keep the value: one of the slots of pairs, of queries or of keys, as of_pairs() and of_keys() say.
  /// −1: only the evaluation of single tokens uses it.
  std::int16_t slot = -1;
  double number = 0;

  /// Whether each score has a value of its own.
  constexpr bool of_pairs() const { return (depends & kScore) != 0 || (depends & (kQuery | kKey)) == (kQuery | kKey); }
  /// Whether each key has one; else each query, or all have one.
  constexpr bool of_keys() const { return !of_pairs() && (depends & kKey) != 0; }

  friend bool operator==(const ScoreNode&, const ScoreNode&) = default;
};

/// An operand in double precision, contiguous; unused dimensions have size 0.
struct ScoreOperand {
  std::span<const double> values = {};
  std::array<std::int64_t, 4> shape = {};
};

/// What a score's function is given beside the score.
struct ScorePlace {
  double bias = 0;  ///< of whichever kind the change adds or reads
  std::int64_t b = 0, h = 0, q = 0, k = 0;
  std::span<const ScoreOperand> operands = {};
};

/// A function of one score, its place (b, h, q, k), numbers and operands: what takes the place of the score. Immutable,
/// with the expressions of its derivatives; equal functions have equal text, such as
/// "mul(score, add(1, mul(0.1, cos(sub(q, k)))))".
class FLASHMASK_API ScoreFunction {
 public:
  static constexpr int kMaxNodes = 192;  ///< with those of the derivatives
  static constexpr int kMaxSlots = 16;   ///< values of a score that are held at once
  static constexpr int kMaxSides = 12;   ///< values of queries, and of keys, that meet others
  static constexpr int kMaxOperands = 4;

  /// Reads text(), spaces or not. Throws Status::invalid_argument with what is not understood, where the value does not
  /// depend on the score, and beyond the limits above.
  static ScoreFunction parse(std::string_view text);

  /// The value as it is written; "$0 = …;" in front names a value that is used more than once.
  std::string text() const { return text(value_); }
  /// A node as it is written: value(), slope() or bias_slope().
  std::string text(int node) const;

  /// All nodes, those of the value first, up to value().
  std::span<const ScoreNode> nodes() const { return nodes_; }
  int value() const { return value_; }
  int slope() const { return slope_; }            ///< node of the derivative by the score
  int bias_slope() const { return bias_slope_; }  ///< the same by the bias; −1: none is read

  bool uses(ScoreOp op) const;
  /// How many values of keys, or of queries, meet others and have slots.
  int sides(bool of_keys) const { return of_keys ? key_sides_ : query_sides_; }
  /// How many operands there are, and how many indices each has.
  int operands() const { return operands_; }
  int rank(int operand) const { return ranks_[static_cast<std::size_t>(operand)]; }
  /// Whether it depends on q and k, if at all, by their difference and which of them is larger.
  bool is_by_distance() const;
  /// Whether it depends on where a score lies, or reads operands.
  bool locates() const;

  /// A changed score and its derivatives by the score and by the bias.
  struct Changed {
    double value, slope, bias_slope;
  };
  /// Computes in double precision, by the rules of differentiation themselves rather than the derivatives' nodes.
  Changed apply(double score, const ScorePlace& place) const;

  /// The function of what `first` makes of a score.
  ScoreFunction after(const ScoreFunction& first) const;

  friend bool operator==(const ScoreFunction& a, const ScoreFunction& b) { return a.text() == b.text(); }

 private:
  friend class ScoreFunctionBuilder;
  ScoreFunction() = default;

  std::vector<ScoreNode> nodes_;
  int value_ = 0, slope_ = 0, bias_slope_ = -1, operands_ = 0, query_sides_ = 0, key_sides_ = 0;
  std::array<int, kMaxOperands> ranks_ = {};
};

}  // namespace flashmask
