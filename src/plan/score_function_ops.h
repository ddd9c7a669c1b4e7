// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "flashmask/score_function.h"

namespace flashmask {

/// An operation of functions of scores: its name and its arguments.
struct ScoreOperation {
  const char* name;
  ScoreOp op;
  int count;
};
inline constexpr ScoreOperation kScoreOperations[] = {
    {"score", ScoreOp::score, 0}, {"bias", ScoreOp::bias, 0},   {"distance", ScoreOp::distance, 0},
    {"b", ScoreOp::b, 0},         {"h", ScoreOp::h, 0},         {"q", ScoreOp::q, 0},
    {"k", ScoreOp::k, 0},         {"at", ScoreOp::read, 0},     {"neg", ScoreOp::neg, 1},
    {"abs", ScoreOp::abs, 1},     {"floor", ScoreOp::floor, 1}, {"sqrt", ScoreOp::sqrt, 1},
    {"exp", ScoreOp::exp, 1},     {"log", ScoreOp::log, 1},     {"tanh", ScoreOp::tanh, 1},
    {"erf", ScoreOp::erf, 1},     {"sin", ScoreOp::sin, 1},     {"cos", ScoreOp::cos, 1},
    {"add", ScoreOp::add, 2},     {"sub", ScoreOp::sub, 2},     {"mul", ScoreOp::mul, 2},
    {"div", ScoreOp::div, 2},     {"min", ScoreOp::min, 2},     {"max", ScoreOp::max, 2},
    {"lt", ScoreOp::lt, 2},       {"le", ScoreOp::le, 2},       {"eq", ScoreOp::eq, 2},
    {"not", ScoreOp::no, 1},      {"and", ScoreOp::both, 2},    {"or", ScoreOp::either, 2},
    {"where", ScoreOp::where, 3}};

/// Returns nullptr where no operation has the name.
inline const ScoreOperation* operation_named(std::string_view name) {
  for (const ScoreOperation& each : kScoreOperations)
    if (each.name == name) return &each;
  return nullptr;
}

inline const ScoreOperation& operation_of(ScoreOp op) {
  for (const ScoreOperation& each : kScoreOperations)
    if (each.op == op) return each;
  return kScoreOperations[0];
}

/// Returns "score, bias, …, and where".
inline std::string all_operations() {
  std::string names;
  for (const ScoreOperation& each : kScoreOperations)
    names += (names.empty() ? "" : each.op == ScoreOp::where ? " or " : ", ") + std::string(each.name);
  return names;
}

constexpr bool is_condition(ScoreOp op) {
  return op == ScoreOp::lt || op == ScoreOp::le || op == ScoreOp::eq || op == ScoreOp::no || op == ScoreOp::both ||
         op == ScoreOp::either;
}

/// Computes an operation of one or two numbers; conditions are 1 and 0.
inline double value_of(ScoreOp op, double a, double b) {
  switch (op) {
    case ScoreOp::neg:
      return -a;
    case ScoreOp::abs:
      return std::abs(a);
    case ScoreOp::floor:
      return std::floor(a);
    case ScoreOp::sqrt:
      return std::sqrt(a);
    case ScoreOp::exp:
      return std::exp(a);
    case ScoreOp::log:
      return std::log(a);
    case ScoreOp::tanh:
      return std::tanh(a);
    case ScoreOp::erf:
      return std::erf(a);
    case ScoreOp::sin:
      return std::sin(a);
    case ScoreOp::cos:
      return std::cos(a);
    case ScoreOp::add:
      return a + b;
    case ScoreOp::sub:
      return a - b;
    case ScoreOp::mul:
      return a * b;
    case ScoreOp::div:
      return a / b;
    case ScoreOp::min:
      return a < b ? a : b;
    case ScoreOp::max:
      return a > b ? a : b;
    case ScoreOp::lt:
      return a < b ? 1 : 0;
    case ScoreOp::le:
      return a <= b ? 1 : 0;
    case ScoreOp::eq:
      return a == b ? 1 : 0;
    case ScoreOp::no:
      return a == 0 ? 1 : 0;
    case ScoreOp::both:
      return a != 0 && b != 0 ? 1 : 0;
    case ScoreOp::either:
      return a != 0 || b != 0 ? 1 : 0;
    default:
      return 0;
  }
}

/// An index as reads take it: cut off to a whole number, and to the first or last entry beyond them. NaN: the first.
inline std::int64_t whole_index(double index, std::int64_t size) {
  if (!(index > 0)) return 0;
  return index < static_cast<double>(size) ? static_cast<std::int64_t>(index) : size - 1;
}

}  // namespace flashmask
