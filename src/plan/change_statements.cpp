// SPDX-License-Identifier: Apache-2.0
#include "plan/change_statements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "flashmask/error.h"
#include "plan/score_function_ops.h"

namespace flashmask {
namespace {

using Op = ScoreOp;
using Place = ChangeNodes::Place;

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

/// Returns " + 3", " - 3" or nothing.
std::string plus(std::int64_t number) {
  if (number == 0) return "";
  return (number < 0 ? " - " : " + ") + std::to_string(std::abs(number));
}

/// What a place is made of: what is the same for all scores of a lane, and what is known when a kernel is compiled.
struct Parts {
  std::string base, further;
};

Parts parts(const Place& at) {
  if (at.is(1, 0)) return {"row", "down" + plus(at.number)};
  if (at.is(0, 1)) return {"column", "right" + plus(at.number)};
  if (at.is(1, -1)) return {"row - column", "down - right" + plus(at.number)};
  if (at.is(-1, 1)) return {"column - row", "right - down" + plus(at.number)};
  return {};
}

std::string tensor_text(int number) { return "operands.tensors[" + std::to_string(number) + "]"; }

}  // namespace

std::string name_of(DType dtype) {
  return dtype == DType::f32 ? "float" : dtype == DType::f16 ? "__half" : "__nv_bfloat16";
}

std::string ChangeStatements::named(const char* type, const std::string& value) {
  const std::string name = "v" + std::to_string(count_++);
  text_ += std::string("    const ") + type + " " + name + " = " + value + ";\n";
  return name;
}

std::string ChangeStatements::number(const ChangeNumber& value) {
  if (value.is_plain() && is_common(value.number)) return literal(value.number);
  auto found = std::ranges::find(numbers_, value);
  if (found == numbers_.end()) {
    if (numbers_.size() == GeneratedChange::kMaxNumbers)
      throw Error(Status::unsupported, "score: a function has more than " +
                                           std::to_string(GeneratedChange::kMaxNumbers) +
                                           " numbers, which kernels for GPUs take; read them from an operand");
    found = numbers_.insert(found, value);
  }
  return "operands.numbers[" + std::to_string(found - numbers_.begin()) + "]";
}

// Products.

std::string ChangeStatements::scaled(int at, const ChangeNumber& by) {
  const ChangeNodes::Product& product = nodes_.product(at);
  const ChangeNumber all = product.number * by;
  if (product.cores.empty()) return number(all);
  if (product.cores.size() == 1 && all.is(1)) return core(product.cores[0]);
  for (const auto& [of, number, name] : scaled_)
    if (of == at && number == all) return name;
  const bool alone = product.cores.size() == 1 && nodes_.has_terms(product.cores[0]);
  const std::string value = alone ? terms(product.cores[0].node, all) : product_of(product.cores, all);
  const std::string name = named("float", value);
  scaled_.emplace_back(at, all, name);
  return name;
}

/// Writes the product of some cores and a number, what is the same for many scores in front.
std::string ChangeStatements::product_of(std::vector<Core> cores, const ChangeNumber& by) {
  std::ranges::stable_sort(cores, {}, [&](const Core& each) { return nodes_.varies(each); });
  const bool multiplies = !by.is(1) && !by.is(-1);
  auto carrier = cores.begin();
  if (multiplies && nodes_.varies(*carrier) == Varies::by_score) {
    carrier = std::ranges::find(cores, 0, [&](const Core& each) { return nodes_.cost(each); });
    if (carrier == cores.end()) carrier = cores.begin();
  }
  std::string text;
  for (auto each = cores.begin(); each != cores.end(); ++each) {
    if (!text.empty()) text += " * ";
    text += multiplies && each == carrier ? times(by, *each) : core(*each);
  }
  return by.is(-1) ? "-" + text : text;
}

std::string ChangeStatements::times(const ChangeNumber& by, const Core& of) {
  return nodes_.has_terms(of) ? named("float", terms(of.node, by)) : number(by) + " * " + core(of);
}

std::string ChangeStatements::core(const Core& of) {
  const Op op = nodes_.node(of.node).op;
  if (of.kind == Core::size) {
    const std::vector<Core>& inner = nodes_.product(of.node).cores;
    const bool alone = inner.size() == 1 && inner[0].kind == Core::value && inner[0].node == of.node;
    return "fabsf(" + (alone ? core(inner[0]) : scaled(of.node, {})) + ")";
  }
  if (of.kind == Core::value && op == Op::score) return "product";
  if (of.kind == Core::value && op == Op::number) return literal(nodes_.node(of.node).number);
  std::string& name = cores_[{of.kind, of.node}];
  if (name.empty()) {
    const std::string value = written_core(of);
    name = named("float", value);
  }
  return name;
}

std::string ChangeStatements::written_core(const Core& of) {
  switch (of.kind) {
    case Core::bare:
      return product_of(nodes_.product(of.node).cores, {});
    case Core::reciprocal:
      return "reciprocal_of(" + scaled(of.node, {}) + ")";
    case Core::slope:
      return entry(nodes_.bias_tensor()) + ".far<0>(batch).far<1>(head).value()";
    case Core::way:
      return way();
    default:
      if (nodes_.is_whole(of.node)) return float_of_whole(of.node);
      return nodes_.has_terms(of.node) ? terms(of.node, {}) : operation(of.node);
  }
}

/// Writes the product of a number and a sum, or the like.
std::string ChangeStatements::terms(int at, const ChangeNumber& by) {
  const ScoreNode& of = nodes_.node(at);
  if (of.op == Op::tanh) return capped(at, by, {0});
  if (!by.is(1) && nodes_.cost_of_terms(at) > 1) return number(by) + " * " + core({Core::value, at});
  if (of.op == Op::where) {
    const std::string holds = condition(of.args[0]), first = scaled(of.args[1], by);
    return holds + " ? " + first + " : " + scaled(of.args[2], by);
  }
  if (const std::string sum = capped_sum(of, by); !sum.empty()) return sum;
  const std::string first = scaled(of.args[0], by);
  return first + (of.op == Op::add ? " + " : " - ") + scaled(of.args[1], by);
}

/// Writes by · tanh(x) + added, tanh(x) as 1 − 2 / (e²ˣ + 1).
std::string ChangeStatements::capped(int at, const ChangeNumber& by, const ChangeNumber& added) {
  std::string& part = powers_[at];
  if (part.empty()) {
    const std::string exponent = scaled(nodes_.node(at).args[0], {.number = 2, .logs = 1});
    part = named("float", "reciprocal_of(exp2_approximate(" + exponent + ") + 1.0f)");
  }
  const std::string factor = number(by * ChangeNumber{-2});
  return "fmaf(" + factor + ", " + part + ", " + number(added.number == 0 ? by : by.plus(added)) + ")";
}

/// Writes the sum of a number and a multiple of a tanh, such as a sigmoid, as one operation; "" where it is another
/// sum.
std::string ChangeStatements::capped_sum(const ScoreNode& of, const ChangeNumber& by) {
  for (const int n : {0, 1}) {
    const ChangeNodes::Product &added = nodes_.product(of.args[n]), &tanh = nodes_.product(of.args[1 - n]);
    if (!added.cores.empty() || tanh.cores.size() != 1 || tanh.cores[0].kind != Core::value ||
        nodes_.node(tanh.cores[0].node).op != Op::tanh || !added.number.adds_to(tanh.number))
      continue;
    const double sign = of.op == Op::sub ? -1 : 1;
    return capped(tanh.cores[0].node, tanh.number * by * ChangeNumber{n == 0 ? sign : 1},
                  added.number * by * ChangeNumber{n == 0 ? 1 : sign});
  }
  return "";
}

std::string ChangeStatements::operation(int at) {
  const ScoreNode& of = nodes_.node(at);
  const auto arg = [&](int i) { return scaled(of.args[i], {}); };
  const auto call = [&](const char* function) { return std::string(function) + "(" + arg(0) + ")"; };
  switch (of.op) {
    case Op::bias:
      return bias();
    case Op::distance:
      return distance();
    case Op::read:
      return read(of);
    case Op::floor:
      return call("floorf");
    case Op::sqrt:
      return call("sqrt_of");
    case Op::exp:
      return "exp2_approximate(" + scaled(of.args[0], {.logs = 1}) + ")";
    case Op::log:
      return call("log2_approximate");
    case Op::erf:
      return call("erff");
    case Op::sin:
      return call("sin_of");
    case Op::cos:
      return call("cos_of");
    default: {  // min, max
      const std::string first = arg(0);
      return (of.op == Op::min ? "fminf(" : "fmaxf(") + first + ", " + arg(1) + ")";
    }
  }
}

// Conditions.

std::string ChangeStatements::condition(int at) {
  std::string& name = conditions_[at];
  if (name.empty()) {
    const std::string value = written_condition(at);
    name = named("bool", value);
  }
  return name;
}

std::string ChangeStatements::written_condition(int at) {
  const ScoreNode& of = nodes_.node(at);
  if (of.op == Op::no) return "!" + condition(of.args[0]);
  if (of.op != Op::both && of.op != Op::either) return compared(of);
  const std::string first = condition(of.args[0]);
  return first + (of.op == Op::both ? " && " : " || ") + condition(of.args[1]);
}

std::string ChangeStatements::compared(const ScoreNode& of) {
  const std::string sign = of.op == Op::lt ? " < " : of.op == Op::le ? " <= " : " == ";
  const int a = of.args[0], b = of.args[1];
  if (const Place apart = nodes_.apart(a, b); nodes_.is_whole(a) && nodes_.is_whole(b) && apart.is_distance()) {
    const auto [base, further] = parts(apart);
    return base + " + (" + further + ")" + sign + "0";
  }
  const bool ints = nodes_.is_whole(a) && nodes_.is_whole(b);
  const std::string first = ints ? whole(a) : scaled(a, {});
  return first + sign + (ints ? whole(b) : scaled(b, {}));
}

// Whole numbers.

std::string ChangeStatements::whole(int at) {
  const ScoreNode& of = nodes_.node(at);
  if (of.op == Op::number) return std::to_string(static_cast<std::int64_t>(of.number));
  if (of.op == Op::b) return "batch";
  if (of.op == Op::h) return "head";
  if (const auto [base, further] = parts(nodes_.place(at)); !base.empty()) return "(" + base + " + (" + further + "))";
  std::string& name = wholes_[at];
  if (name.empty()) {
    const std::string value = written_whole(of);
    name = named("int", value);
  }
  return name;
}

std::string ChangeStatements::written_whole(const ScoreNode& of) {
  if (of.op == Op::floor && !nodes_.is_whole(of.args[0])) {
    const ScoreNode& quotient = nodes_.node(of.args[0]);
    const std::string first = whole(quotient.args[0]);
    return "floor_quotient(" + first + ", " + whole(quotient.args[1]) + ")";
  }
  if (of.op == Op::where) {
    const std::string holds = condition(of.args[0]), first = whole(of.args[1]);
    return holds + " ? " + first + " : " + whole(of.args[2]);
  }
  const std::string first = whole(of.args[0]);
  switch (of.op) {
    case Op::neg:
      return "-" + first;
    case Op::abs:
      return "abs(" + first + ")";
    case Op::add:
      return first + " + " + whole(of.args[1]);
    case Op::sub:
      return first + " - " + whole(of.args[1]);
    case Op::mul:
      return first + " * " + whole(of.args[1]);
    case Op::min:
    case Op::max:
      return (of.op == Op::min ? "min(" : "max(") + first + ", " + whole(of.args[1]) + ")";
    default:  // floor of a whole number
      return first;
  }
}

/// Distances and the like take one conversion for all scores of a lane: floats are exact up to 2^24.
std::string ChangeStatements::float_of_whole(int at) {
  const ScoreNode& of = nodes_.node(at);
  if (of.op == Op::abs) return "fabsf(" + scaled(of.args[0], {}) + ")";
  const auto [base, further] = parts(nodes_.place(at));
  return base.empty() ? "float(" + whole(at) + ")" : "float(" + base + ") + float(" + further + ")";
}

// Tensors.

std::string ChangeStatements::entry(int tensor) const {
  return "Entry<" + name_of(nodes_.form(tensor).dtype) + ">(" + tensor_text(tensor) + ")";
}

/// Goes along an axis: by 64-bit products where that is done once, or has to be.
std::string ChangeStatements::step(int tensor, int axis, bool is_last, Varies varies, const std::string& index) const {
  const TensorForm& form = nodes_.form(tensor);
  const std::string at = "(" + index + ")";
  if (is_last && form.dense) return ".next<" + std::to_string(axis) + ">" + at;
  const bool far = varies == Varies::never || (form.wide >> axis & 1) != 0;
  return (far ? ".far<" : ".near<") + std::to_string(axis) + ">" + at;
}

/// An index that is no less than 0: whole, or cut off.
std::string ChangeStatements::index(int at) {
  const ScoreNode& of = nodes_.node(at);
  const Place& place = nodes_.place(at);
  if (of.op == Op::b || of.op == Op::h || (place.known && place.q >= 0 && place.k >= 0 && place.number >= 0))
    return whole(at);
  return "max(" + (nodes_.is_whole(at) ? whole(at) : "int(" + scaled(at, {}) + ")") + ", 0)";
}

/// The axes whose index is the same for most scores come first.
std::string ChangeStatements::read(const ScoreNode& of) {
  std::vector<int> axes;
  for (int axis = 0; axis < of.count; ++axis) axes.push_back(axis);
  const auto varies = [&](int axis) { return nodes_.varies(of.args[axis]); };
  std::ranges::stable_sort(axes, {}, varies);
  std::string text = entry(of.operand);
  for (const int axis : axes) text += step(of.operand, axis, axis == of.count - 1, varies(axis), index(of.args[axis]));
  return text + ".value()";
}

std::string ChangeStatements::bias() {
  if (biased_) return "bias";
  const int tensor = nodes_.bias_tensor();
  std::string text = entry(tensor) + ".far<0>(batch).far<1>(head)";
  if (nodes_.form(tensor).of_rows) text += step(tensor, 2, false, Varies::by_row, "row + down");
  return text + step(tensor, 3, true, Varies::by_column, "column + right") + ".value()";
}

/// What a table of distances has for a score: 0 where it has no entry.
std::string ChangeStatements::distance() {
  const int tensor = nodes_.bias_tensor();
  const std::string place = named("int", "row - column + operands.integers[0] + (down - right)");
  std::string text = entry(tensor) + ".far<0>(batch).far<1>(head)";
  if (nodes_.form(tensor).of_rows) text += step(tensor, 2, false, Varies::by_row, "row + down");
  const std::string value =
      named("float", text + step(tensor, 3, true, Varies::by_distance, "max(" + place + ", 0)") + ".value()");
  return "has_entry(" + tensor_text(tensor) + ", " + place + ") ? " + value + " : 0.0f";
}

/// How far the query and the key of a score are apart, as ALiBi has it.
std::string ChangeStatements::way() {
  const int queries = nodes_.bias_tensor() + 1, keys = queries + 1;
  if (nodes_.form(queries).absent) return "fabsf(float(row - column + operands.integers[0]) + float(down - right))";
  const std::string row =
      entry(queries) + ".far<0>(batch)" + step(queries, 1, true, Varies::by_row, "row + down") + ".value()";
  const std::string column =
      entry(keys) + ".far<0>(batch)" + step(keys, 1, true, Varies::by_column, "column + right") + ".value()";
  return "fabsf(" + row + " - " + column + ")";
}

}  // namespace flashmask
