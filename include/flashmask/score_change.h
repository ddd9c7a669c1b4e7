// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "flashmask/export.h"
#include "flashmask/language_standard.h"
#include "flashmask/score_function.h"

namespace flashmask {

/// What a change of scores adds to them.
enum class ScoreBias : std::uint8_t {
  none,
  alibi,      ///< −slope · |distance|, by AlibiTensors (Press et al. 2022, attention with linear biases)
  tensor,     ///< a number for each score, by BiasTensor
  distances,  ///< a number for each distance, by BiasTensor
};

/// One step of a change of scores.
struct ScoreStep {
  enum class Kind : std::uint8_t {
    multiply,  ///< by `number`
    cap,       ///< to number · tanh(score / number), which lies within ± number
    add,       ///< `bias`
    function,  ///< to what `function` computes
  };
  Kind kind = Kind::multiply;
  ScoreBias bias = ScoreBias::none;  ///< what is added, or read by the function
  double number = 0;
  std::shared_ptr<const ScoreFunction> function = {};

  friend FLASHMASK_API bool operator==(const ScoreStep& a, const ScoreStep& b);
};

/// How scores are changed before any is masked: steps of namespace scores, one after another, joined by |. A change
/// adds at most one bias. Steps beside a function become part of it. lse is that of changed scores; sinks are not
/// changed. Immutable; equal changes have equal text.
class FLASHMASK_API ScoreChange {
 public:
  static constexpr std::size_t kMaxSteps = 8;

  ScoreChange() = default;  ///< leaves scores as they are
  /// One step. Throws Status::invalid_argument for a number that is out of range; see namespace scores.
  explicit ScoreChange(const ScoreStep& step);
  /// Reads text(), spaces or not. Throws Status::invalid_argument with the part that is not understood.
  static ScoreChange parse(std::string_view text);
  /// Whether a step has this name, such as softcap.
  static bool is_step(std::string_view name);

  /// Does `next` to what `first` makes. Throws Status::invalid_argument where both add a bias, and for more than
  /// kMaxSteps steps.
  friend FLASHMASK_API ScoreChange operator|(const ScoreChange& first, const ScoreChange& next);

  /// The steps as they are written, such as "softcap(50) | alibi"; "" where scores stay as they are.
  std::string text() const;

  /// What scores are multiplied by first, which Problem::softmax_scale() includes.
  double factor() const { return factor_; }
  /// What follows; neighbouring factors are one step.
  std::span<const ScoreStep> steps() const { return {steps_.data(), count_}; }
  ScoreBias bias() const {
    for (std::size_t i = 0; i < count_; ++i)
      if (steps_[i].bias != ScoreBias::none) return steps_[i].bias;
    return ScoreBias::none;
  }
  /// The function that follows the factor, alone; nullptr: there is none.
  const ScoreFunction* function() const { return count_ > 0 ? steps_[0].function.get() : nullptr; }
  /// The cap of the first step; 0: that is no cap.
  double cap() const { return count_ > 0 && steps_[0].kind == ScoreStep::Kind::cap ? steps_[0].number : 0; }
  /// Whether all steps are a cap and a bias, either or both, as every kernel knows them.
  bool is_cap_and_bias() const;
  /// The product of the factors among steps().
  double later_factors() const;
  /// The product of those behind the bias, by which its gradient is multiplied.
  double bias_factors() const;

  /// A changed score and its derivatives: by the score, and by what the bias adds to it.
  using Changed = ScoreFunction::Changed;
  /// Takes the steps() in double precision. `score` has been multiplied by factor().
  Changed apply(double score, const ScorePlace& place) const;

  friend bool operator==(const ScoreChange&, const ScoreChange&) = default;

 private:
  void append(const ScoreStep& step);
  void append_to_function(const ScoreStep& step);

  double factor_ = 1;
  std::size_t count_ = 0;
  std::array<ScoreStep, kMaxSteps> steps_{};
};

namespace scores {

/// factor · score; the size of the factor is from 1e-30 to 1e30.
inline ScoreChange multiply(double factor) {
  return ScoreChange({.kind = ScoreStep::Kind::multiply, .number = factor});
}
/// cap · tanh(score / cap), as Gemma 2 caps scores; a cap from 1e-30 to 1e30.
inline ScoreChange softcap(double cap) { return ScoreChange({.kind = ScoreStep::Kind::cap, .number = cap}); }
/// score − slope · |distance|, by AlibiTensors.
inline ScoreChange alibi() { return ScoreChange({.kind = ScoreStep::Kind::add, .bias = ScoreBias::alibi}); }
/// score + a number for each score, by BiasTensor.
inline ScoreChange bias() { return ScoreChange({.kind = ScoreStep::Kind::add, .bias = ScoreBias::tensor}); }
/// score + a number for each distance, by BiasTensor.
inline ScoreChange distance() { return ScoreChange({.kind = ScoreStep::Kind::add, .bias = ScoreBias::distances}); }
/// What an expression computes, such as "mul(score, cos(sub(q, k)))": see ScoreFunction::parse().
FLASHMASK_API ScoreChange function(std::string_view text);

}  // namespace scores

}  // namespace flashmask
