// SPDX-License-Identifier: Apache-2.0
#include "flashmask/score_function.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <locale>
#include <map>
#include <numbers>
#include <sstream>

#include "base/checks.h"
#include "flashmask/error.h"
#include "plan/score_function_builder.h"
#include "plan/score_function_ops.h"

namespace flashmask {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

/// Returns the part of a text around a character, and a line below it with a caret under the character.
std::string pointed_at(std::string_view text, std::size_t at) {
  constexpr std::size_t kBefore = 50, kAfter = 30;
  const std::size_t begin = at > kBefore ? at - kBefore : 0;
  const std::string left = begin > 0 ? "  …" : "  ", right = at + kAfter < text.size() ? "…" : "";
  std::string shown(text.substr(begin, at + kAfter - begin));
  std::ranges::replace_if(shown, is_space, ' ');
  return "\n" + left + shown + right + "\n" + std::string(at - begin + (begin > 0 ? 3 : 2), ' ') + "^";
}

/// Reads the text of a function into a builder, from left to right.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  ScoreFunction function() {
    while (peek() == '$' && rest_.find(';') != std::string_view::npos && defines()) define();
    const int value = expression();
    if (peek() != '\0') fail("expected nothing behind the value");
    return make_.function(value);
  }

 private:
  /// How deep calls may be nested, so that no text exhausts the stack.
  static constexpr int kDeepest = 256;

  std::size_t place() const { return text_.size() - rest_.size(); }
  [[noreturn]] void fail(const std::string& what, std::size_t at) const {
    refuse("score: a function is not understood at character " + std::to_string(at + 1) + ": " + what +
           pointed_at(text_, at));
  }
  [[noreturn]] void fail(const std::string& what) const { fail(what, place()); }

  char peek() {
    while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("expected \"") + wanted + "\"");
  }

  template <class Allowed>
  std::string word(const Allowed& allowed) {
    std::size_t length = 0;
    while (length < rest_.size() && allowed(rest_[length])) ++length;
    const std::string found(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return found;
  }
  std::string name() {
    peek();
    return word([](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; });
  }

  /// Whether the text goes on with "$name =".
  bool defines() const {
    const std::size_t equals = rest_.find_first_of("=;(,");
    return equals != std::string_view::npos && rest_[equals] == '=';
  }
  void define() {
    const std::size_t begin = place();
    const std::string named = name();
    expect('=');
    const int value = expression();
    expect(';');
    if (!names_.emplace(named, value).second) fail(named + " has a value already", begin);
  }

  int expression() {
    const char first = peek();
    if (first == '-' || first == '.' || std::isdigit(static_cast<unsigned char>(first)) != 0) return number();
    const std::size_t begin = place();
    const std::string named = name();
    if (const auto found = names_.find(named); found != names_.end()) return found->second;
    if (named == "inf") return make_.number(HUGE_VAL);
    if (first == '$') fail(named + " has no value; write " + named + " = …; ahead of what uses it", begin);
    const ScoreOperation* const operation = operation_named(named);
    if (operation == nullptr) fail("expected a number, " + all_operations(), begin);
    if (++depth_ > kDeepest) fail("it is nested more than " + std::to_string(kDeepest) + " deep", begin);
    const int made = operation->op == ScoreOp::read ? read() : call(*operation, begin);
    --depth_;
    return made;
  }

  int number() {
    if (rest_.starts_with("-inf")) {
      rest_.remove_prefix(4);
      return make_.number(-HUGE_VAL);
    }
    const std::size_t begin = place();
    std::istringstream digits{word([](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == 'e' || c == '-' || c == '+';
    })};
    digits.imbue(std::locale::classic());
    double value = 0;
    if (digits >> value && digits.peek() == std::istringstream::traits_type::eof()) return make_.number(value);
    fail("expected a number", begin);
  }

  std::vector<int> arguments() {
    std::vector<int> found;
    do found.push_back(expression());
    while (take(','));
    expect(')');
    return found;
  }

  /// `begin`: where the operation's name stands.
  int call(const ScoreOperation& operation, std::size_t begin) {
    if (operation.count == 0) return make_.leaf(operation.op);
    expect('(');
    const std::vector<int> args = arguments();
    if (std::ssize(args) != operation.count)
      fail(operation.name + std::string(" takes ") + counted(operation.count, "argument") + ", and has " +
               std::to_string(args.size()),
           begin);
    return at(begin, [&] { return make_.node(operation.op, args); });
  }

  int read() {
    expect('(');
    peek();
    const std::size_t begin = place();
    const std::string operand = word([](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
    if (operand.size() != 1 || operand[0] - '0' >= ScoreFunction::kMaxOperands)
      fail("expected the number of an operand, 0 to " + std::to_string(ScoreFunction::kMaxOperands - 1), begin);
    expect(',');
    const std::vector<int> indices = arguments();
    return at(begin, [&] { return make_.read(operand[0] - '0', indices); });
  }

  /// Returns make(), whose refusals are of what stands at `begin`.
  template <class Make>
  int at(std::size_t begin, const Make& make) {
    try {
      return make();
    } catch (const Error& error) {
      throw Error(error.status(), error.what() + pointed_at(text_, begin));
    }
  }

  const std::string_view text_;
  std::string_view rest_;
  ScoreFunctionBuilder make_;
  std::map<std::string, int> names_;
  int depth_ = 0;
};

/// A value with its derivatives by the score and by the bias.
struct Dual {
  double value, by_score = 0, by_bias = 0;
};

/// Returns f(x) with derivative `slope`; one that is not finite is left out where x does not vary.
Dual chained(const Dual& x, double value, double slope) {
  const auto times = [&](double of) { return of == 0 ? 0 : slope * of; };
  return {value, times(x.by_score), times(x.by_bias)};
}

Dual sum(const Dual& x, double a, const Dual& y, double b, double value) {
  const auto times = [](double factor, double of) { return of == 0 ? 0 : factor * of; };
  return {value, times(a, x.by_score) + times(b, y.by_score), times(a, x.by_bias) + times(b, y.by_bias)};
}

Dual computed(const ScoreNode& node, const Dual (&x)[4], double score, const ScorePlace& at) {
  const Dual &a = x[0], &b = x[1];
  switch (node.op) {
    case ScoreOp::number:
      return {node.number};
    case ScoreOp::score:
      return {score, 1, 0};
    case ScoreOp::bias:
    case ScoreOp::distance:
      return {at.bias, 0, 1};
    case ScoreOp::b:
      return {static_cast<double>(at.b)};
    case ScoreOp::h:
      return {static_cast<double>(at.h)};
    case ScoreOp::q:
      return {static_cast<double>(at.q)};
    case ScoreOp::k:
      return {static_cast<double>(at.k)};
    case ScoreOp::read: {
      const ScoreOperand& operand = at.operands[node.operand];
      std::int64_t index = 0;
      for (std::size_t i = 0; i < node.count; ++i)
        index = index * operand.shape[i] + whole_index(x[i].value, operand.shape[i]);
      return {operand.values[static_cast<std::size_t>(index)]};
    }
    case ScoreOp::neg:
      return chained(a, -a.value, -1);
    case ScoreOp::abs:
      return chained(a, std::abs(a.value), a.value < 0 ? -1 : 1);
    case ScoreOp::sqrt:
      return chained(a, std::sqrt(a.value), 0.5 / std::sqrt(a.value));
    case ScoreOp::exp:
      return chained(a, std::exp(a.value), std::exp(a.value));
    case ScoreOp::log:
      return chained(a, std::log(a.value), 1 / a.value);
    case ScoreOp::tanh:
      return chained(a, std::tanh(a.value), 1 - std::tanh(a.value) * std::tanh(a.value));
    case ScoreOp::erf:
      return chained(a, std::erf(a.value), 2 * std::numbers::inv_sqrtpi * std::exp(-a.value * a.value));
    case ScoreOp::sin:
      return chained(a, std::sin(a.value), std::cos(a.value));
    case ScoreOp::cos:
      return chained(a, std::cos(a.value), -std::sin(a.value));
    case ScoreOp::add:
      return sum(a, 1, b, 1, a.value + b.value);
    case ScoreOp::sub:
      return sum(a, 1, b, -1, a.value - b.value);
    case ScoreOp::mul:
      return sum(a, b.value, b, a.value, a.value * b.value);
    case ScoreOp::div:
      return sum(a, 1 / b.value, b, -a.value / (b.value * b.value), a.value / b.value);
    case ScoreOp::min:
      return a.value < b.value ? a : b;
    case ScoreOp::max:
      return a.value > b.value ? a : b;
    case ScoreOp::where:
      return a.value != 0 ? b : x[2];
    default:
      return {value_of(node.op, a.value, b.value)};
  }
}

/// Writes nodes as calls; those that are used more than once get names, in the order in which the value meets them, so
/// that equal functions have equal text however they were made.
class Writer {
 public:
  /// Writes the value of node `at`.
  Writer(std::span<const ScoreNode> nodes, int at)
      : nodes_(nodes.first(static_cast<std::size_t>(at) + 1)),
        uses_(nodes_.size()),
        seen_(nodes_.size()),
        names_(nodes_.size()) {
    uses_.back() = 1;
    for (std::size_t i = nodes_.size(); i-- > 0;)  // behind its arguments
      for (int a = 0; uses_[i] > 0 && a < nodes_[i].count; ++a) ++uses_[index(nodes_[i], a)];
  }

  std::string text() {
    const std::size_t value = nodes_.size() - 1;
    name(value);
    return definitions_ + written(value);
  }

 private:
  /// Names what a node is made of, and the node itself if it is used more than once.
  void name(std::size_t i) {
    if (seen_[i]) return;
    seen_[i] = true;
    for (int a = 0; a < nodes_[i].count; ++a) name(index(nodes_[i], a));
    if (uses_[i] < 2 || nodes_[i].count == 0) return;
    const std::string definition = written(i);
    names_[i] = "$" + std::to_string(named_++);
    definitions_ += names_[i] + " = " + definition + "; ";
  }

  static std::size_t index(const ScoreNode& node, int arg) { return static_cast<std::size_t>(node.args[arg]); }

  std::string written(std::size_t i) const {
    const ScoreNode& node = nodes_[i];
    if (!names_[i].empty()) return names_[i];
    if (node.op == ScoreOp::number) return shortest(node.number);
    std::string text(operation_of(node.op).name);
    if (node.count == 0) return text;
    std::string args = node.op == ScoreOp::read ? std::to_string(node.operand) : "";
    for (int a = 0; a < node.count; ++a) args += (args.empty() ? "" : ", ") + written(index(node, a));
    return text + "(" + args + ")";
  }

  std::span<const ScoreNode> nodes_;
  std::vector<int> uses_;
  std::vector<bool> seen_;
  std::vector<std::string> names_;
  std::string definitions_;
  int named_ = 0;
};

}  // namespace

ScoreFunction ScoreFunction::parse(std::string_view text) { return Parser(text).function(); }

std::string ScoreFunction::text(int node) const { return Writer(nodes_, node).text(); }

bool ScoreFunction::uses(ScoreOp op) const {
  return std::ranges::any_of(nodes_, [&](const ScoreNode& node) { return node.op == op; });
}

bool ScoreFunction::is_by_distance() const {
  const auto is_place = [&](int at) {
    return nodes_[static_cast<std::size_t>(at)].op == ScoreOp::q ||
           nodes_[static_cast<std::size_t>(at)].op == ScoreOp::k;
  };
  return std::ranges::none_of(nodes_, [&](const ScoreNode& node) {
    const bool compares =
        node.op == ScoreOp::sub || node.op == ScoreOp::lt || node.op == ScoreOp::le || node.op == ScoreOp::eq;
    if (compares && is_place(node.args[0]) && is_place(node.args[1])) return false;
    return std::any_of(node.args, node.args + node.count, is_place);
  });
}

bool ScoreFunction::locates() const {
  return operands_ > 0 ||
         std::ranges::any_of(nodes_, [](const ScoreNode& node) { return (node.depends & ~ScoreNode::kScore) != 0; });
}

ScoreFunction::Changed ScoreFunction::apply(double score, const ScorePlace& place) const {
  std::vector<Dual> values;
  values.reserve(nodes_.size());
  for (int i = 0; i <= value_; ++i) {
    const ScoreNode& node = nodes_[static_cast<std::size_t>(i)];
    Dual args[4] = {};
    for (int a = 0; a < node.count; ++a) args[a] = values[static_cast<std::size_t>(node.args[a])];
    values.push_back(computed(node, args, score, place));
  }
  return {values.back().value, values.back().by_score, values.back().by_bias};
}

ScoreFunction ScoreFunction::after(const ScoreFunction& first) const {
  ScoreFunctionBuilder make;
  return make.function(make.call(*this, make.call(first, make.leaf(ScoreOp::score))));
}

}  // namespace flashmask
