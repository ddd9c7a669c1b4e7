// SPDX-License-Identifier: Apache-2.0
#include "plan/change_nodes.h"

#include <algorithm>
#include <cmath>

#include "plan/score_function_ops.h"

namespace flashmask {
namespace {

using Op = ScoreOp;

/// A sum of places takes what both depend on.
Varies joined(Varies a, Varies b) {
  if (a == Varies::never || a == b) return b;
  return b == Varies::never ? a : Varies::by_score;
}

}  // namespace

ChangeNodes::ChangeNodes(const ScoreFunction& function, ScoreBias bias, const TensorForms& forms)
    : nodes_(function.nodes()), bias_(bias), bias_tensor_(function.operands()), forms_(forms) {
  count_uses(function);
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    whole_.push_back(find_whole(node(i)));
    places_.push_back(find_place(i));
    varies_.push_back(find_varies(i));
    products_.push_back(find_product(i));
    costs_.push_back(find_cost(i));
  }
}

void ChangeNodes::count_uses(const ScoreFunction& function) {
  uses_.resize(nodes_.size());
  for (const ScoreNode& each : nodes_)
    for (int a = 0; a < each.count; ++a) ++uses_[index(each.args[a])];
  for (const int result : {function.value(), function.slope(), function.bias_slope()})
    if (result >= 0) ++uses_[index(result)];
}

bool ChangeNodes::find_whole(const ScoreNode& of) const {
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
      return (of.depends & ScoreNode::kScore) == 0 && is_whole(of.args[1]) && is_whole(of.args[2]);
    default:
      return false;
  }
}

bool ChangeNodes::is_small(int at) const { return is_number(at) && std::abs(node(at).number) <= 64; }

bool ChangeNodes::is_quotient(int at) const {
  const ScoreNode& of = node(at);
  return of.op == Op::div && is_whole(of.args[0]) && is_whole(of.args[1]) && is_number(of.args[1]) &&
         node(of.args[1]).number > 0;
}

ChangeNodes::Place ChangeNodes::find_place(int at) const {
  const ScoreNode& of = node(at);
  if (!is_whole(at)) return {};
  const auto arg = [&](int i) -> const Place& { return place(of.args[i]); };
  const auto times = [](const Place& a, std::int64_t by) { return Place{a.known, a.q * by, a.k * by, a.number * by}; };
  switch (of.op) {
    case Op::q:
      return {true, 1, 0, 0};
    case Op::k:
      return {true, 0, 1, 0};
    case Op::number:
      return {true, 0, 0, static_cast<std::int64_t>(of.number)};
    case Op::neg:
      return times(arg(0), -1);
    case Op::add:
      return {arg(0).known && arg(1).known, arg(0).q + arg(1).q, arg(0).k + arg(1).k, arg(0).number + arg(1).number};
    case Op::sub:
      return apart(of.args[0], of.args[1]);
    default:
      return {};
  }
}

ChangeNodes::Place ChangeNodes::apart(int a, int b) const {
  const Place &first = place(a), &second = place(b);
  return {first.known && second.known, first.q - second.q, first.k - second.k, first.number - second.number};
}

Varies ChangeNodes::find_varies(int at) const {
  const ScoreNode& of = node(at);
  if (of.op == Op::q) return Varies::by_row;
  if (of.op == Op::k) return Varies::by_column;
  if (of.op == Op::score) return Varies::by_score;
  if (of.op == Op::bias || of.op == Op::distance) return find_varies_of_bias(of);
  const bool compares = of.op == Op::lt || of.op == Op::le || of.op == Op::eq;
  if (place(at).is_distance() || (compares && apart(of.args[0], of.args[1]).is_distance())) return Varies::by_distance;
  Varies all = Varies::never;
  for (int a = 0; a < of.count; ++a) all = joined(all, varies(of.args[a]));
  return all;
}

Varies ChangeNodes::find_varies_of_bias(const ScoreNode& of) const {
  if (bias_ == ScoreBias::alibi) return form(bias_tensor_ + 1).absent ? Varies::by_distance : Varies::by_score;
  if (form(bias_tensor_).of_rows) return Varies::by_score;
  return of.op == Op::distance ? Varies::by_distance : Varies::by_column;
}

Varies ChangeNodes::varies(const Core& core) const {
  return core.kind == Core::slope ? Varies::never : varies(core.node);
}

void ChangeNodes::join(Product& product, int with) const {
  const Product& other = this->product(with);
  product.number = product.number * other.number;
  // A product of its own that others use is computed once.
  if (other.cores.size() > 1 && uses_[index(with)] > 1)
    product.cores.push_back({Core::bare, with});
  else
    product.cores.insert(product.cores.end(), other.cores.begin(), other.cores.end());
}

ChangeNodes::Product ChangeNodes::find_product(int at) const {
  const ScoreNode& of = node(at);
  Product made;
  const Product itself{{}, {{Core::value, at}}};
  if (of.op == Op::number && of.number != 0 && std::isfinite(of.number)) return {{of.number}, {}};
  if (is_whole(at) || is_number(at)) return itself;
  switch (of.op) {
    case Op::score:
      return {{.scales = 1}, {{Core::value, at}}};
    case Op::bias:
      if (bias_ == ScoreBias::alibi) return {{-1}, {{Core::slope, at}, {Core::way, at}}};
      return itself;
    case Op::neg:
      made.number = {-1};
      join(made, of.args[0]);
      return made;
    case Op::add:
      if (of.args[0] != of.args[1]) return itself;
      made.number = {2};
      join(made, of.args[0]);
      return made;
    case Op::mul:
      join(made, of.args[0]);
      join(made, of.args[1]);
      return made;
    case Op::div:
      join(made, of.args[0]);
      if (is_number(of.args[1]))
        made.number = made.number * ChangeNumber{1 / node(of.args[1]).number};
      else
        made.cores.push_back({Core::reciprocal, of.args[1]});
      return made;
    case Op::abs: {
      const Product& inner = product(of.args[0]);
      if (inner.cores.size() == 1 && inner.cores[0].kind == Core::value)
        return {inner.number.size(), {{Core::size, inner.cores[0].node}}};
      return {{}, {{Core::size, of.args[0]}}};
    }
    case Op::log:
      return {{.logs = -1}, {{Core::value, at}}};
    default:
      return itself;
  }
}

bool ChangeNodes::has_terms(int at) const {
  const Op op = node(at).op;
  return !is_whole(at) && (op == Op::add || op == Op::sub || op == Op::where || op == Op::tanh);
}

int ChangeNodes::cost(const Core& core) const {
  if (varies(core) != Varies::by_score) return 0;
  return has_terms(core) ? std::min(1, cost_of_terms(core.node)) : 1;
}

int ChangeNodes::cost_of_terms(int at) const {
  const ScoreNode& of = node(at);
  if (of.op == Op::tanh) return 0;
  const int first = of.op == Op::where ? 1 : 0;
  return costs_[index(of.args[first])] + costs_[index(of.args[first + 1])];
}

int ChangeNodes::find_cost(int at) const {
  const Product& of = product(at);
  const bool multiplies = !of.number.is(1) && !of.number.is(-1);
  return multiplies || of.cores.empty() ||
                 std::ranges::any_of(of.cores, [&](const Core& each) { return cost(each) == 0; })
             ? 0
             : 1;
}

}  // namespace flashmask
