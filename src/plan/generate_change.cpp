// SPDX-License-Identifier: Apache-2.0
#include "plan/generate_change.h"

#include <algorithm>
#include <cmath>

#include "plan/change_nodes.h"
#include "plan/change_statements.h"
#include "plan/score_function_builder.h"

namespace flashmask {
namespace {

using Op = ScoreOp;
using Kind = ScoreStep::Kind;

/// All steps of a change as one function, of which a bias of any kind is a leaf.
ScoreFunction function_of(const ScoreChange& change) {
  if (change.function() != nullptr) return *change.function();
  ScoreFunctionBuilder make;
  int score = make.leaf(Op::score);
  for (const ScoreStep& step : change.steps()) {
    if (step.kind == Kind::add) {
      score = make.node(Op::add, {score, make.leaf(step.bias == ScoreBias::distances ? Op::distance : Op::bias)});
      continue;
    }
    const int number = make.number(step.number);
    if (step.kind == Kind::cap) score = make.node(Op::tanh, {make.node(Op::div, {score, number})});
    score = make.node(Op::mul, {number, score});
  }
  return make.function(score);
}

/// Whether a node's value, and so a slope, may be infinite or NaN at a finite score. What is read for a token may be
/// anything where the token is hidden.
bool may_overflow(const ChangeNodes& nodes, int at) {
  const ScoreNode& node = nodes.node(at);
  switch (node.op) {
    case Op::div:
    case Op::log:
    case Op::exp:
    case Op::sqrt:
      return true;
    case Op::read:
      return nodes.varies(at) != Varies::never;
    case Op::bias:
    case Op::distance:
      return nodes.bias() != ScoreBias::alibi;
    default:
      return node.op == Op::number && std::isinf(node.number);
  }
}

/// Whether that goes for any value that a result is made of; conditions only choose among values.
bool may_any_overflow(const ChangeNodes& nodes, int result) {
  std::vector<bool> needed(static_cast<std::size_t>(result) + 1, false);
  needed.back() = true;
  for (int i = result; i >= 0; --i) {
    if (!needed[static_cast<std::size_t>(i)]) continue;
    const ScoreNode& node = nodes.node(i);
    const bool divides_by_number = node.op == Op::div && nodes.is_number(node.args[1]);
    if (!divides_by_number && may_overflow(nodes, i)) return true;
    for (int a = node.op == Op::where ? 1 : 0; a < node.count; ++a)
      needed[static_cast<std::size_t>(node.args[a])] = true;
  }
  return false;
}

std::string flag(const char* name, bool value) {
  return std::string("  static constexpr bool ") + name + " = " + (value ? "true" : "false") + ";\n";
}

/// Whether it reads what single tokens have.
bool reads_tokens(const ChangeNodes& nodes, const ScoreFunction& function) {
  for (int i = 0; i <= function.value(); ++i) {
    const Op op = nodes.node(i).op;
    if ((op == Op::read && nodes.varies(i) != Varies::never) || op == Op::distance) return true;
    if (op == Op::bias && nodes.bias() != ScoreBias::alibi) return true;
  }
  return false;
}

/// Writes value(), or biased(), whose further results are slopes by name.
std::string value_function(const ChangeNodes& nodes, const ScoreFunction& function, std::vector<ChangeNumber>& numbers,
                           bool biased, const std::vector<std::pair<const char*, int>>& slopes) {
  ChangeStatements statements(nodes, numbers, biased);
  const std::string value = statements.scaled(function.value(), {.logs = 1});
  std::string text = std::string("  __device__ __forceinline__ float ") +
                     (biased ? "biased(float product, float bias" : "value(float product") + ", int down, int right",
              results;
  for (const auto& [name, node] : slopes) {
    text += std::string(", float& ") + name;
    results += std::string("    ") + name + " = " + statements.scaled(node, {}) + ";\n";
  }
  return text + ") const {\n" + statements.text() + results + "    return " + value + ";\n  }\n";
}

}  // namespace

TensorForms usual_forms(const ScoreChange& change, DType dtype) {
  TensorForms forms;
  const std::size_t bias =
      change.function() != nullptr ? static_cast<std::size_t>(change.function()->operands()) : std::size_t{0};
  if (change.bias() == ScoreBias::alibi)
    forms[bias + 1].absent = forms[bias + 2].absent = true;
  else if (change.bias() != ScoreBias::none)
    forms[bias] = {.dtype = change.bias() == ScoreBias::distances && change.function() != nullptr ? DType::f32 : dtype,
                   .of_rows = change.bias() == ScoreBias::tensor,
                   .in_eights = change.bias() == ScoreBias::tensor};
  return forms;
}

GeneratedChange generate_change(const ScoreChange& change, const TensorForms& forms) {
  const ScoreFunction function = function_of(change);
  const ChangeNodes nodes(function, change.bias(), forms);
  GeneratedChange made;
  if (change.bias() != ScoreBias::none) made.bias_tensor = nodes.bias_tensor();
  const bool slopes = !nodes.product(function.slope()).cores.empty() || !nodes.product(function.slope()).number.is(1);
  made.text = "struct Change {\n" + flag("kLocates", function.locates() || made.bias_tensor >= 0) +
              flag("kSlope", slopes) + flag("kGuards", may_any_overflow(nodes, function.slope())) +
              flag("kMakesNan", may_any_overflow(nodes, function.value()) || reads_tokens(nodes, function)) +
              "  const ChangeOperands& operands;\n  int batch, head, row, column;\n\n"
              "  __device__ __forceinline__ Change(const ChangeOperands& given, int of_batch, int of_head, int of_row, "
              "int of_column)\n      : operands(given), batch(of_batch), head(of_head), row(of_row), column(of_column) "
              "{}\n";
  const bool of_tensor = made.bias_tensor >= 0 && change.bias() != ScoreBias::alibi;
  const bool in_eights = of_tensor && function.uses(Op::bias) && nodes.form(made.bias_tensor).in_eights;
  if (in_eights) made.text += "  using Bias = " + name_of(nodes.form(made.bias_tensor).dtype) + ";\n";
  for (const bool biased : {false, true}) {
    if (biased && !in_eights) break;
    const auto write = [&](const std::vector<std::pair<const char*, int>>& results) {
      made.text += value_function(nodes, function, made.numbers, biased, results);
    };
    write({});
    write({{"slope", function.slope()}});
    if (of_tensor) write({{"slope", function.slope()}, {"bias_slope", function.bias_slope()}});
  }
  made.text += "};\n";
  return made;
}

}  // namespace flashmask
