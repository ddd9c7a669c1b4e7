// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_change.h"

#include <cmath>
#include <locale>
#include <sstream>

#include "base/checks.h"

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
                           {"distance", Kind::add, ScoreBias::distances}};

std::string_view name_of(const ScoreStep& step) {
  for (const Name& each : kNames)
    if (each.kind == step.kind && each.bias == step.bias) return each.name;
  refuse("score: a step of kind " + std::to_string(static_cast<int>(step.kind)) + " adds bias " +
         std::to_string(static_cast<int>(step.bias)) + "; expected one of namespace scores");
}

/// Kernels compute with numbers and their reciprocals in float32.
void require_number(const ScoreStep& step) {
  const double size = step.kind == Kind::multiply ? std::abs(step.number) : step.number;
  if (step.kind == Kind::add || (size >= 1e-30 && size <= 1e30)) return;
  refuse("score: " + std::string(name_of(step)) + " is " + shortest(step.number) +
         "; expected a number from 1e-30 to 1e30" +
         (step.kind == Kind::multiply ? ", or one below 0 of that size" : ""));
}

std::string text_of(const ScoreStep& step) {
  std::string text(name_of(step));
  return step.kind == Kind::add ? text : text + "(" + shortest(step.number) + ")";
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

/// Reads a number in brackets; a program's locale has no say in how it is written.
bool read_bracketed(std::string_view text, double& number) {
  if (text.size() < 3 || text.front() != '(' || text.back() != ')') return false;
  std::istringstream digits{std::string(trimmed(text.substr(1, text.size() - 2)))};
  digits.imbue(std::locale::classic());
  return static_cast<bool>(digits >> number) && digits.peek() == std::istringstream::traits_type::eof();
}

ScoreStep parse_step(std::string_view text) {
  const std::string_view name = trimmed(text.substr(0, text.find('('))), rest = trimmed(text.substr(name.size()));
  for (const Name& each : kNames) {
    if (each.name != name) continue;
    ScoreStep step{each.kind, each.bias};
    if (each.kind == Kind::add ? rest.empty() : read_bracketed(rest, step.number)) return step;
  }
  refuse("score: \"" + std::string(text) +
         "\" is no step of a change; expected steps such as \"softcap(50) | alibi\", of multiply(number), "
         "softcap(number), alibi, bias and distance");
}

}  // namespace

ScoreChange::ScoreChange(const ScoreStep& step) {
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

void ScoreChange::append(const ScoreStep& step) {
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
  if (step.kind == Kind::add && bias() != ScoreBias::none)
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
  return count_ == std::size_t{cap() > 0} + std::size_t{bias() != ScoreBias::none};
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
    factors = step.kind == Kind::add ? 1 : step.kind == Kind::multiply ? factors * step.number : factors;
  return factors;
}

ScoreChange::Changed ScoreChange::apply(double score, double bias) const {
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
        changed.value += bias;
        changed.bias_slope = 1;
        continue;
    }
    changed.slope *= slope;
    changed.bias_slope *= slope;
  }
  return changed;
}

}  // namespace flashmask
