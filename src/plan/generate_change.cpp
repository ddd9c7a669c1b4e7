// SPDX-License-Identifier: Apache-2.0
#include "plan/generate_change.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "flashmask/error.h"
#include "plan/score_function_ops.h"

namespace flashmask {
namespace {

using Op = ScoreOp;

/// Whether the text may write a number as it is: a few that all functions share.
bool is_common(double number) {
  return number == 0 || std::abs(number) == 1 || std::abs(number) == 0.5 || std::abs(number) == 2 || std::isinf(number);
}

std::string literal(double number) {
  if (std::isinf(number)) return number < 0 ? "-__builtin_inff()" : "__builtin_inff()";
  const std::string digits =
      std::abs(number) == 0.5 ? "0.5f" : std::to_string(static_cast<int>(std::abs(number))) + ".0f";
  return number < 0 ? "-" + digits : digits;
}

/// Writes the nodes of a function as statements, each node once.
class Statements {
 public:
  Statements(const ScoreFunction& function, std::vector<float>& numbers)
      : nodes_(function.nodes()), operands_(function.operands()), numbers_(numbers), names_(nodes_.size()) {}

  /// Writes what a result needs, and returns its value as a float.
  std::string result(int at) {
    std::vector<bool> needed(nodes_.size(), false);
    needed[index(at)] = true;
    for (std::size_t i = nodes_.size(); i-- > 0;)
      for (int a = 0; needed[i] && a < written(nodes_[i]).count; ++a) needed[index(written(nodes_[i]).args[a])] = true;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (needed[i] && names_[i].empty()) write(static_cast<int>(i));
    return as_float(at);
  }

  const std::string& text() const { return text_; }

 private:
  static std::size_t index(int at) { return static_cast<std::size_t>(at); }
  const ScoreNode& node(int at) const { return nodes_[index(at)]; }
  /// The node whose arguments a node's statement names: that of the quotient where it is the floor of one.
  const ScoreNode& written(const ScoreNode& of) const {
    return of.op == Op::floor && is_quotient(of.args[0]) ? node(of.args[0]) : of;
  }
  bool is_number(int at) const { return node(at).op == Op::number; }

  /// Whether a value is computed as an int: whole numbers of places, as long as they stay small.
  bool is_whole(int at) const {
    const ScoreNode& of = node(at);
    const auto all = [&] { return std::all_of(of.args, of.args + of.count, [&](int a) { return is_whole(a); }); };
    switch (of.op) {
      case Op::b:
      case Op::h:
      case Op::q:
      case Op::k:
        return true;
      case Op::number:
        return of.number == std::floor(of.number) && std::abs(of.number) < (1 << 24);
      case Op::neg:
      case Op::abs:
      case Op::add:
      case Op::sub:
      case Op::min:
      case Op::max:
        return all();
      case Op::mul:
        return all() && (is_small(of.args[0]) || is_small(of.args[1]));
      case Op::floor:
        return is_whole(of.args[0]) || is_quotient(of.args[0]);
      case Op::where:
        return is_whole(of.args[1]) && is_whole(of.args[2]);
      default:
        return false;
    }
  }
  bool is_small(int at) const { return is_number(at) && std::abs(node(at).number) <= 64; }
  /// Whether a value is a quotient of whole numbers, the second one above 0, whose floor is Python's //.
  bool is_quotient(int at) const {
    const ScoreNode& of = node(at);
    return of.op == Op::div && is_whole(of.args[0]) && is_whole(of.args[1]) && is_number(of.args[1]) &&
           node(of.args[1]).number > 0;
  }

  std::string number(double value) {
    if (is_common(value)) return literal(value);
    const auto wanted = static_cast<float>(value);
    auto found = std::ranges::find(numbers_, wanted);
    if (found == numbers_.end()) {
      if (numbers_.size() == GeneratedChange::kMaxNumbers)
        throw Error(Status::unsupported, "score: a function has more than " +
                                             std::to_string(GeneratedChange::kMaxNumbers) +
                                             " numbers, which kernels for GPUs take; read them from an operand");
      found = numbers_.insert(found, wanted);
    }
    return "operands.numbers[" + std::to_string(found - numbers_.begin()) + "]";
  }

  std::string as_int(int at) {
    return is_number(at) ? std::to_string(std::int64_t(node(at).number)) : names_[index(at)];
  }
  std::string as_float(int at) {
    if (is_number(at)) return number(node(at).number);
    return is_whole(at) ? "float(" + names_[index(at)] + ")" : names_[index(at)];
  }
  /// An index: whole, or cut off.
  std::string as_index(int at) { return is_whole(at) ? as_int(at) : "int(" + names_[index(at)] + ")"; }

  void write(int at) {
    const ScoreNode& of = node(at);
    if (of.op == Op::number) return;
    std::string& name = names_[index(at)];
    if (of.count == 0 && of.op != Op::bias && of.op != Op::distance) {
      name = leaf(of.op);
      return;
    }
    const std::string value = is_whole(at) ? whole_value(of) : value_of_node(of);
    name = "v" + std::to_string(at);
    text_ += std::string("    const ") +
             (is_whole(at)          ? "int"
              : is_condition(of.op) ? "bool"
                                    : "float") +
             " " + name + " = " + value + ";\n";
  }

  static std::string leaf(Op op) {
    switch (op) {
      case Op::score:
        return "s";
      case Op::b:
        return "batch";
      case Op::h:
        return "head";
      case Op::q:
        return "(row + down)";
      default:
        return "(column + right)";
    }
  }

  std::string whole_value(const ScoreNode& of) {
    const auto arg = [&](int i) { return as_int(of.args[i]); };
    switch (of.op) {
      case Op::neg:
        return "-" + arg(0);
      case Op::abs:
        return "abs(" + arg(0) + ")";
      case Op::add:
        return arg(0) + " + " + arg(1);
      case Op::sub:
        return arg(0) + " - " + arg(1);
      case Op::mul:
        return arg(0) + " * " + arg(1);
      case Op::min:
      case Op::max:
        return (of.op == Op::min ? "min(" : "max(") + arg(0) + ", " + arg(1) + ")";
      case Op::where:
        return names_[index(of.args[0])] + " ? " + arg(1) + " : " + arg(2);
      default: {  // floor
        const ScoreNode& inner = written(of);
        if (&inner == &of) return arg(0);
        return "floor_quotient(" + as_int(inner.args[0]) + ", " + as_int(inner.args[1]) + ")";
      }
    }
  }

  std::string value_of_node(const ScoreNode& of) {
    const auto arg = [&](int i) { return as_float(of.args[i]); };
    const auto call = [&](const char* function) { return std::string(function) + "(" + arg(0) + ")"; };
    switch (of.op) {
      case Op::bias:
        return "at(operands.tensors[" + std::to_string(operands_) + "], batch, head, row + down, column + right)";
      case Op::distance:
        return "entry(down, right)";
      case Op::read:
        return read(of);
      case Op::neg:
        return "-" + arg(0);
      case Op::abs:
        return call("fabsf");
      case Op::floor:
        return call("floorf");
      case Op::sqrt:
        return call("sqrt_of");
      case Op::exp:
        return call("exp_of");
      case Op::log:
        return call("log_of");
      case Op::tanh:
        return call("tanh_of");
      case Op::erf:
        return call("erff");
      case Op::sin:
        return call("sin_of");
      case Op::cos:
        return call("cos_of");
      case Op::min:
        return "fminf(" + arg(0) + ", " + arg(1) + ")";
      case Op::max:
        return "fmaxf(" + arg(0) + ", " + arg(1) + ")";
      case Op::div:
        if (is_number(of.args[1])) return arg(0) + " * " + number(1 / node(of.args[1]).number);
        return node(of.args[0]).op == Op::number && node(of.args[0]).number == 1
                   ? "reciprocal_of(" + arg(1) + ")"
                   : arg(0) + " * reciprocal_of(" + arg(1) + ")";
      case Op::where:
        return names_[index(of.args[0])] + " ? " + arg(1) + " : " + arg(2);
      case Op::no:
        return "!" + names_[index(of.args[0])];
      case Op::both:
      case Op::either:
        return names_[index(of.args[0])] + (of.op == Op::both ? " && " : " || ") + names_[index(of.args[1])];
      default:
        return operated(of);
    }
  }

  /// Writes sums, products and comparisons, of ints where both are.
  std::string operated(const ScoreNode& of) {
    const std::string sign = of.op == Op::add   ? " + "
                             : of.op == Op::sub ? " - "
                             : of.op == Op::mul ? " * "
                             : of.op == Op::lt  ? " < "
                             : of.op == Op::le  ? " <= "
                                                : " == ";
    if (is_condition(of.op) && is_whole(of.args[0]) && is_whole(of.args[1]))
      return as_int(of.args[0]) + sign + as_int(of.args[1]);
    return as_float(of.args[0]) + sign + as_float(of.args[1]);
  }

  std::string read(const ScoreNode& of) {
    std::string text = "at(operands.tensors[" + std::to_string(of.operand) + "]";
    for (int i = 0; i < of.count; ++i) text += ", " + as_index(of.args[i]);
    return text + ")";
  }

  std::span<const ScoreNode> nodes_;
  const int operands_;
  std::vector<float>& numbers_;
  std::vector<std::string> names_;
  std::string text_;
};

/// Whether a slope may be infinite or NaN at a finite score.
bool may_overflow(const ScoreFunction& function) {
  return std::ranges::any_of(function.nodes(), [](const ScoreNode& node) {
    return node.op == Op::div || node.op == Op::log || node.op == Op::exp || node.op == Op::sqrt ||
           node.op == Op::read || node.op == Op::bias || node.op == Op::distance ||
           (node.op == Op::number && std::isinf(node.number));
  });
}

std::string flag(const char* name, bool value) {
  return std::string("  static constexpr bool ") + name + " = " + (value ? "true" : "false") + ";\n";
}

/// The look-up of a table of distances; 0 where there is no entry.
std::string entry_function(int tensor) {
  const std::string table = "operands.tensors[" + std::to_string(tensor) + "]";
  return "  __device__ __forceinline__ float entry(int down, int right) const {\n"
         "    const int i = row - column + (down - right) + operands.integers[0];\n"
         "    return i >= 0 && i < " +
         table + ".sizes[3] ? at(" + table + ", batch, head, row + down, i) : 0.0f;\n  }\n";
}

}  // namespace

GeneratedChange generate_change(const ScoreChange& change) {
  if (change.bias() == ScoreBias::alibi)
    throw Error(Status::unsupported,
                "score: " + change.text() + " has kernels of its own on GPUs; no text is made of it");
  // The identity makes one function of all steps.
  const ScoreChange whole = change.function() != nullptr ? change : change | scores::function("score");
  const ScoreFunction& function = *whole.function();
  GeneratedChange made;
  if (whole.bias() != ScoreBias::none) made.bias_tensor = function.operands();
  if (made.bias_tensor == ScoreFunction::kMaxOperands)
    throw Error(Status::unsupported, "score: a function reads a bias and " + std::to_string(function.operands()) +
                                         " operands, and kernels for GPUs take four tensors; join two of them");
  const bool table = whole.bias() == ScoreBias::distances;
  Statements of_value(function, made.numbers), of_both(function, made.numbers), of_bias(function, made.numbers);
  const std::string value = of_value.result(function.value());
  const std::string changed = of_both.result(function.value()), slope = of_both.result(function.slope());
  const ScoreNode& derivative = function.nodes()[static_cast<std::size_t>(function.slope())];
  const std::string signature = "  __device__ __forceinline__ float value(float s, int down, int right";
  std::string by_bias;
  if (function.bias_slope() >= 0) {
    const std::string changed_too = of_bias.result(function.value()),
                      bias_slope = of_bias.result(function.bias_slope());
    by_bias = "  __device__ __forceinline__ float value_by_bias(float s, int down, int right, float& slope) const {\n" +
              of_bias.text() + "    slope = " + bias_slope + ";\n    return " + changed_too + ";\n  }\n";
  }
  made.text = "struct Change {\n" + flag("kLocates", function.locates() || made.bias_tensor >= 0) +
              flag("kSlope", derivative.op != Op::number || derivative.number != 1) +
              flag("kGuards", may_overflow(function)) +
              "  const ChangeOperands& operands;\n  int batch, head, row, column;\n\n"
              "  __device__ __forceinline__ Change(const ChangeOperands& given, int of_batch, int of_head, int of_row, "
              "int of_column)\n      : operands(given), batch(of_batch), head(of_head), row(of_row), column(of_column) "
              "{}\n" +
              (table ? entry_function(made.bias_tensor) : "") + signature + ") const {\n" + of_value.text() +
              "    return " + value + ";\n  }\n" + signature + ", float& slope) const {\n" + of_both.text() +
              "    slope = " + slope + ";\n    return " + changed + ";\n  }\n" + by_bias + "};\n";
  return made;
}

}  // namespace flashmask
