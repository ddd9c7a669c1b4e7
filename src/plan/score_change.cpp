// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_change.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <optional>
#include <sstream>
#include <utility>

#include "base/checks.h"
#include "plan/score_function_builder.h"

namespace flashmask {
namespace {

using Kind = ScoreStep::Kind;

/// What a step is called, and what it does. One row is all that the text of a step needs.
struct Name {
  std::string_view name;
  Kind kind;
  ScoreBias bias = ScoreBias::none;
};
constexpr Name kNames[] = {{"multiply", Kind::multiply},
                           {"softcap", Kind::cap},
                           {"alibi", Kind::add, ScoreBias::alibi},
                           {"bias", Kind::add, ScoreBias::tensor},
                           {"distance", Kind::add, ScoreBias::distances},
                           {"function", Kind::function}};

std::string_view name_of(const ScoreStep& step) {
  for (const Name& each : kNames)
    if (each.kind == step.kind && (each.bias == step.bias || each.kind == Kind::function)) return each.name;
  refuse("score: a step of kind " + std::to_string(static_cast<int>(step.kind)) + " adds bias " +
         std::to_string(static_cast<int>(step.bias)) + "; expected one of namespace scores");
}

/// Kernels compute with numbers and their reciprocals in float32.
void require_number(const ScoreStep& step) {
  const double size = step.kind == Kind::multiply ? std::abs(step.number) : step.number;
  if (step.kind == Kind::add || step.kind == Kind::function || (size >= 1e-30 && size <= 1e30)) return;
  refuse("score: " + std::string(name_of(step)) + " is " + shortest(step.number) +
         "; expected a number from 1e-30 to 1e30" +
         (step.kind == Kind::multiply ? ", or one below 0 of that size" : ""));
}

std::string text_of(const ScoreStep& step) {
  std::string text(name_of(step));
  if (step.kind == Kind::add) return text;
  return text + "(" + (step.function != nullptr ? step.function->text() : shortest(step.number)) + ")";
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

/// Reads a number in brackets; a program's locale has no say in how it is written.
bool read_bracketed(std::string_view text, double& number) {
  if (text.size() < 3 || text.front() != '(' || text.back() != ')') return false;
  std::istringstream digits{std::string(trimmed(text.substr(1, text.size() - 2)))};
  digits.imbue(std::locale::classic());
  return static_cast<bool>(digits >> number) && digits.peek() == std::istringstream::traits_type::eof();
}

ScoreStep step_of(ScoreFunction function) {
  const ScoreBias bias = function.uses(ScoreOp::bias)       ? ScoreBias::tensor
                         : function.uses(ScoreOp::distance) ? ScoreBias::distances
                                                            : ScoreBias::none;
  return {.kind = Kind::function, .bias = bias, .function = std::make_shared<const ScoreFunction>(std::move(function))};
}

/// What a step computes, as a function.
ScoreFunction function_of(const ScoreStep& step) {
  using Op = ScoreOp;
  if (step.function != nullptr) return *step.function;
  ScoreFunctionBuilder make;
  const int score = make.leaf(Op::score), number = make.number(step.number);
  if (step.kind == Kind::multiply) return make.function(make.node(Op::mul, {score, number}));
  if (step.kind == Kind::cap)
    return make.function(make.node(Op::mul, {number, make.node(Op::tanh, {make.node(Op::div, {score, number})})}));
  if (step.bias == ScoreBias::alibi)
    refuse(
        "score: a change has alibi and a function; write the slopes, an operand, and abs(sub(q, k)) into the function");
  return make.function(
      make.node(Op::add, {score, make.leaf(step.bias == ScoreBias::tensor ? Op::bias : Op::distance)}));
}

ScoreStep parse_step(std::string_view text) {
  const std::string_view name = trimmed(text.substr(0, text.find('('))), rest = trimmed(text.substr(name.size()));
  for (const Name& each : kNames) {
    if (each.name != name) continue;
    if (each.kind == Kind::function && rest.size() > 1 && rest.front() == '(' && rest.back() == ')')
      return step_of(ScoreFunction::parse(rest.substr(1, rest.size() - 2)));
    ScoreStep step{.kind = each.kind, .bias = each.bias};
    if (each.kind == Kind::function) break;
    if (each.kind == Kind::add ? rest.empty() : read_bracketed(rest, step.number)) return step;
  }
  refuse("score: \"" + std::string(text) +
         "\" is no step of a change; expected steps such as \"softcap(50) | alibi\", of multiply(number), "
         "softcap(number), alibi, bias, distance and function(expression)");
}

}  // namespace

bool operator==(const ScoreStep& a, const ScoreStep& b) {
  const bool same = a.kind == b.kind && a.bias == b.bias && a.number == b.number;
  if (a.function == nullptr || b.function == nullptr) return same && a.function == b.function;
  return same && *a.function == *b.function;
}

ScoreChange::ScoreChange(const ScoreStep& step) {
  if ((step.kind == Kind::function) != (step.function != nullptr))
    refuse("score: a step has a function, or is one, and not both; take scores::function(text)");
  require_number(step);
  append(step);
}

ScoreChange ScoreChange::parse(std::string_view text) {
  ScoreChange change;
  while (!trimmed(text).empty()) {
    const std::size_t bar = text.find('|');
    change = change | ScoreChange(parse_step(trimmed(text.substr(0, bar))));
    if (bar == std::string_view::npos) break;
    text.remove_prefix(bar + 1);
    if (trimmed(text).empty()) refuse("score: nothing follows the last \"|\"; expected another step");
  }
  return change;
}

bool ScoreChange::is_step(std::string_view name) {
  return std::ranges::find(kNames, name, &Name::name) != std::end(kNames);
}

/// Makes one function of all steps and another one.
void ScoreChange::append_to_function(const ScoreStep& step) {
  std::optional<ScoreFunction> all;
  for (std::size_t i = 0; i < count_; ++i) all = all ? function_of(steps_[i]).after(*all) : function_of(steps_[i]);
  steps_ = {};
  steps_[0] = step_of(all ? function_of(step).after(*all) : function_of(step));
  count_ = 1;
}

void ScoreChange::append(const ScoreStep& step) {
  const bool first_factor = step.kind == Kind::multiply && count_ == 0;
  const bool two_biases = step.bias != ScoreBias::none && bias() != ScoreBias::none;
  if (!first_factor && !two_biases && (step.kind == Kind::function || function() != nullptr))
    return append_to_function(step);
  if (step.kind == Kind::multiply) {
    double& factor = count_ == 0 ? factor_ : steps_[count_ - 1].number;
    if (count_ == 0 || steps_[count_ - 1].kind == Kind::multiply) {
      require_number({.kind = Kind::multiply, .number = factor * step.number});
      factor *= step.number;
      if (count_ > 0 && factor == 1) steps_[--count_] = {};
      return;
    }
    if (step.number == 1) return;
  }
  if (two_biases)
    refuse("score: a change adds two biases, " + text() + " and then " + text_of(step) +
           "; scores take one: add one to the other");
  if (count_ == kMaxSteps) refuse("score: a change has more than " + std::to_string(kMaxSteps) + " steps: " + text());
  steps_[count_++] = step;
}

ScoreChange operator|(const ScoreChange& first, const ScoreChange& next) {
  ScoreChange joined = first;
  joined.append({.kind = Kind::multiply, .number = next.factor_});
  for (const ScoreStep& step : next.steps()) joined.append(step);
  return joined;
}

std::string ScoreChange::text() const {
  std::string text = factor_ == 1 ? "" : text_of({.kind = Kind::multiply, .number = factor_});
  for (const ScoreStep& step : steps()) text += (text.empty() ? "" : " | ") + text_of(step);
  return text;
}

bool ScoreChange::is_cap_and_bias() const {
  return function() == nullptr && count_ == std::size_t{cap() > 0} + std::size_t{bias() != ScoreBias::none};
}

double ScoreChange::later_factors() const {
  double factors = 1;
  for (const ScoreStep& step : steps())
    if (step.kind == Kind::multiply) factors *= step.number;
  return factors;
}

double ScoreChange::bias_factors() const {
  double factors = 1;
  for (const ScoreStep& step : steps())
    factors = step.kind == Kind::add || step.kind == Kind::function ? 1
              : step.kind == Kind::multiply                         ? factors * step.number
                                                                    : factors;
  return factors;
}

ScoreChange::Changed ScoreChange::apply(double score, const ScorePlace& place) const {
  if (const ScoreFunction* const computed = function()) return computed->apply(score, place);
  Changed changed{score, 1, 0};
  for (const ScoreStep& step : steps()) {
    double slope = step.number;
    switch (step.kind) {
      case Kind::multiply:
        changed.value *= step.number;
        break;
      case Kind::cap: {
        const double y = std::tanh(changed.value / step.number);
        changed.value = step.number * y;
        slope = 1 - y * y;
        break;
      }
      case Kind::add:
        changed.value += place.bias;
        changed.bias_slope = 1;
        continue;
      case Kind::function:
        break;
    }
    changed.slope *= slope;
    changed.bias_slope *= slope;
  }
  return changed;
}

ScoreChange scores::function(std::string_view text) { return ScoreChange(step_of(ScoreFunction::parse(text))); }

}  // namespace flashmask
