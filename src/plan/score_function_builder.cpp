// SPDX-License-Identifier: Apache-2.0
#include "plan/score_function_builder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/checks.h"
#include "plan/score_function_ops.h"

namespace flashmask {
namespace {

using Op = ScoreOp;

std::uint8_t dependence_of_leaf(Op op) {
  switch (op) {
    case Op::score:
    case Op::bias:
    case Op::distance:
      return ScoreNode::kScore;
    case Op::b:
      return ScoreNode::kBatch;
    case Op::h:
      return ScoreNode::kHead;
    case Op::q:
      return ScoreNode::kQuery;
    case Op::k:
      return ScoreNode::kKey;
    default:
      return 0;
  }
}

/// Whether an argument of an operation is a condition; any other is a number.
bool takes_condition(Op op, std::size_t arg) {
  return op == Op::no || op == Op::both || op == Op::either || (op == Op::where && arg == 0);
}

[[noreturn]] void refuse_limit(const std::string& what, int limit) {
  refuse("score: a function has more than " + std::to_string(limit) + " " + what +
         "; write it with fewer, or compute what depends on one token before the call and read it from an operand");
}

/// Gives the nodes their slots: those of pairs while they are needed, those of single tokens that meet others for good.
class Slots {
 public:
  Slots(std::vector<ScoreNode>& nodes, std::initializer_list<int> results)
      : nodes_(nodes), last_use_(nodes.size(), -1), meets_(nodes.size(), false) {
    const int end = static_cast<int>(nodes.size());
    for (int i = 0; i < end; ++i)
      for (int a = 0; a < nodes[at(i)].count; ++a) use(nodes[at(i)].args[a], i, nodes[at(i)].of_pairs());
    for (const int each : results)
      if (each >= 0) use(each, end, true);
  }

  int of_queries = 0, of_keys = 0;

  void assign() {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      ScoreNode& node = nodes_[at(i)];
      if (node.of_pairs())
        node.slot = taken(i);
      else if (meets_[at(i)] && node.op != Op::number)
        node.slot = static_cast<std::int16_t>(node.of_keys() ? of_keys++ : of_queries++);
    }
    if (of_queries > ScoreFunction::kMaxSides || of_keys > ScoreFunction::kMaxSides)
      refuse_limit("values of queries, or of keys, that meet others", ScoreFunction::kMaxSides);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void use(int node, int by, bool by_pair) {
    last_use_[at(node)] = by;
    if (by_pair) meets_[at(node)] = true;
  }

  /// A slot that node i may overwrite: each operation reads all it needs of a place before it writes there.
  std::int16_t taken(int i) {
    for (std::size_t slot = 0; slot < until_.size(); ++slot) {
      if (until_[slot] > i) continue;
      until_[slot] = last_use_[at(i)];
      return static_cast<std::int16_t>(slot);
    }
    refuse_limit("values of a score that are held at once", ScoreFunction::kMaxSlots);
  }

  std::vector<ScoreNode>& nodes_;
  std::vector<int> last_use_;
  std::vector<bool> meets_;
  std::array<int, ScoreFunction::kMaxSlots> until_ = {};
};

/// The nodes that some results need, those of the first result in front; others are left out.
class Kept {
 public:
  explicit Kept(const std::vector<ScoreNode>& all) : all_(all), place_(all.size(), -1) {}

  /// Returns where the result lies among nodes().
  int keep(int result) {
    std::vector<bool> needed(all_.size(), false);
    needed[static_cast<std::size_t>(result)] = true;
    for (std::size_t i = all_.size(); i-- > 0;)
      for (int a = 0; needed[i] && a < all_[i].count; ++a) needed[static_cast<std::size_t>(all_[i].args[a])] = true;
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (needed[i] && place_[i] < 0) append(i);
    return place_[static_cast<std::size_t>(result)];
  }

  std::vector<ScoreNode> nodes() && { return std::move(nodes_); }

 private:
  void append(std::size_t i) {
    ScoreNode node = all_[i];
    for (int a = 0; a < node.count; ++a)
      node.args[a] = static_cast<std::int16_t>(place_[static_cast<std::size_t>(node.args[a])]);
    place_[i] = static_cast<int>(nodes_.size());
    nodes_.push_back(node);
  }

  const std::vector<ScoreNode>& all_;
  std::vector<int> place_;
  std::vector<ScoreNode> nodes_;
};

}  // namespace

int ScoreFunctionBuilder::add(ScoreNode node) {
  node.depends = dependence_of_leaf(node.op);
  for (int a = 0; a < node.count; ++a) node.depends |= nodes_[static_cast<std::size_t>(node.args[a])].depends;
  if (const auto found = std::ranges::find(nodes_, node); found != nodes_.end())
    return static_cast<int>(found - nodes_.begin());
  constexpr std::size_t kMost = 4096;  // before those that no result needs are left out
  if (nodes_.size() >= kMost) refuse_limit("operations", ScoreFunction::kMaxNodes);
  nodes_.push_back(node);
  return static_cast<int>(nodes_.size()) - 1;
}

int ScoreFunctionBuilder::number(double value) {
  if (std::isnan(value)) refuse("score: a constant of a function is not a number, such as 0 / 0; leave it out");
  return add({.op = Op::number, .number = value});
}

int ScoreFunctionBuilder::read(int operand, const std::vector<int>& indices) {
  if (indices.empty() || indices.size() > 4)
    refuse("score: operand " + std::to_string(operand) + " is read at " + std::to_string(indices.size()) +
           " indices; expected 1 to 4");
  ScoreNode node{.op = Op::read,
                 .count = static_cast<std::uint8_t>(indices.size()),
                 .operand = static_cast<std::uint8_t>(operand)};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (is_condition(nodes_[static_cast<std::size_t>(indices[i])].op))
      refuse("score: an index of operand " + std::to_string(operand) + " is a condition; expected a number");
    node.args[i] = static_cast<std::int16_t>(indices[i]);
  }
  return add(node);
}

int ScoreFunctionBuilder::node(Op op, std::initializer_list<int> args) { return node(op, std::vector<int>(args)); }

int ScoreFunctionBuilder::node(Op op, const std::vector<int>& args) {
  ScoreNode made{.op = op, .count = static_cast<std::uint8_t>(args.size())};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool given = is_condition(nodes_[static_cast<std::size_t>(args[i])].op);
    if (given != takes_condition(op, i))
      refuse("score: argument " + std::to_string(i + 1) + " of " + operation_of(op).name + " is a " +
             (given ? "condition" : "number") + "; expected a " + (given ? "number" : "condition"));
    made.args[i] = static_cast<std::int16_t>(args[i]);
  }
  const int known = simpler(op, args);
  return known >= 0 ? known : add(made);
}

bool ScoreFunctionBuilder::is(int node, double value) const {
  const ScoreNode& at = nodes_[static_cast<std::size_t>(node)];
  return at.op == Op::number && at.number == value;
}

int ScoreFunctionBuilder::simpler(Op op, const std::vector<int>& args) {
  const auto of = [&](int node) { return nodes_[static_cast<std::size_t>(node)]; };
  const bool numbers = std::ranges::all_of(args, [&](int arg) { return of(arg).op == Op::number; });
  if (numbers && op != Op::where && !is_condition(op))
    return number(value_of(op, of(args[0]).number, args.size() > 1 ? of(args[1]).number : 0));
  const int a = args[0], b = args.size() > 1 ? args[1] : -1;
  switch (op) {
    case Op::add:
      if (is(a, 0)) return b;
      return is(b, 0) ? a : -1;
    case Op::sub:
      if (is(a, 0)) return node(Op::neg, {b});
      return is(b, 0) ? a : -1;
    case Op::mul:
      if (is(a, 0) || is(b, 0)) return number(0);
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      if (is(a, -1)) return node(Op::neg, {b});
      return is(b, -1) ? node(Op::neg, {a}) : -1;
    case Op::div:
      if (is(a, 0)) return a;
      return is(b, 1) ? a : -1;
    case Op::neg:
      return of(a).op == Op::neg ? of(a).args[0] : -1;
    case Op::no:
      return of(a).op == Op::no ? of(a).args[0] : -1;
    case Op::where:
      return b == args[2] ? b : -1;
    default:
      return -1;
  }
}

int ScoreFunctionBuilder::call(const ScoreFunction& function, int score) {
  std::vector<int> made;
  for (const ScoreNode& each : function.nodes().first(static_cast<std::size_t>(function.value()) + 1)) {
    std::vector<int> args;
    for (int a = 0; a < each.count; ++a) args.push_back(made[static_cast<std::size_t>(each.args[a])]);
    made.push_back(each.op == Op::score    ? score
                   : each.op == Op::number ? number(each.number)
                   : each.op == Op::read   ? read(each.operand, args)
                   : each.count == 0       ? leaf(each.op)
                                           : node(each.op, args));
  }
  return made.back();
}

/// Returns the derivative of a node by a leaf; `known` has those of nodes that were asked for before, −1 for others.
int ScoreFunctionBuilder::derivative(int node, Op by, std::vector<int>& known) {
  const auto at = static_cast<std::size_t>(node);
  if (nodes_[at].op == by) return number(1);
  if ((nodes_[at].depends & ScoreNode::kScore) == 0 || nodes_[at].count == 0) return number(0);
  if (known[at] >= 0) return known[at];
  return known[at] = derivative_of_operation(node, by, known);
}

int ScoreFunctionBuilder::derivative_of_operation(int at, Op by, std::vector<int>& known) {
  const ScoreNode of = nodes_[static_cast<std::size_t>(at)];
  const int a = of.args[0], b = of.args[1], c = of.args[2];
  const auto d = [&](int arg) { return derivative(arg, by, known); };
  const auto chain = [&](int slope, int arg) { return node(Op::mul, {slope, d(arg)}); };
  switch (of.op) {
    case Op::neg:
      return node(Op::neg, {d(a)});
    case Op::abs:
      return node(Op::where, {node(Op::lt, {a, number(0)}), node(Op::neg, {d(a)}), d(a)});
    case Op::sqrt:
      return is(d(a), 0) ? d(a) : node(Op::div, {d(a), node(Op::mul, {number(2), at})});
    case Op::exp:
      return chain(at, a);
    case Op::log:
      return node(Op::div, {d(a), a});
    case Op::tanh:
      return chain(node(Op::sub, {number(1), node(Op::mul, {at, at})}), a);
    case Op::erf: {
      const int power = node(Op::exp, {node(Op::neg, {node(Op::mul, {a, a})})});
      return chain(node(Op::mul, {number(2 * std::numbers::inv_sqrtpi), power}), a);
    }
    case Op::sin:
      return chain(node(Op::cos, {a}), a);
    case Op::cos:
      return chain(node(Op::neg, {node(Op::sin, {a})}), a);
    case Op::add:
    case Op::sub:
      return node(of.op, {d(a), d(b)});
    case Op::mul:
      return node(Op::add, {chain(b, a), chain(a, b)});
    case Op::div:
      return node(Op::div, {node(Op::sub, {d(a), chain(at, b)}), b});
    case Op::min:
      return node(Op::where, {node(Op::lt, {a, b}), d(a), d(b)});
    case Op::max:
      return node(Op::where, {node(Op::lt, {b, a}), d(a), d(b)});
    case Op::where:
      return node(Op::where, {a, d(b), d(c)});
    default:
      return number(0);
  }
}

ScoreFunction ScoreFunctionBuilder::function(int value) {
  if (is_condition(nodes_[static_cast<std::size_t>(value)].op))
    refuse("score: a function's value is a condition; expected a number, such as where(condition, score, 0)");
  const auto derived = [&](Op by) {
    std::vector<int> known(nodes_.size(), -1);
    return derivative(value, by, known);
  };
  ScoreFunction made;
  const auto uses = [&](Op op) { return std::ranges::find(nodes_, op, &ScoreNode::op) != nodes_.end(); };
  if (uses(Op::bias) && uses(Op::distance))
    refuse("score: a function reads bias and distance; scores take one bias: read the other from an operand");
  const int slope = derived(Op::score);
  const int bias_slope = uses(Op::bias) ? derived(Op::bias) : uses(Op::distance) ? derived(Op::distance) : -1;
  Kept all(nodes_);
  made.value_ = all.keep(value);
  made.slope_ = all.keep(slope);
  if (bias_slope >= 0) made.bias_slope_ = all.keep(bias_slope);
  made.nodes_ = std::move(all).nodes();
  if (!made.uses(Op::score)) refuse("score: the new score does not depend on the score; use it in the function");
  if (std::ssize(made.nodes_) > ScoreFunction::kMaxNodes) refuse_limit("operations", ScoreFunction::kMaxNodes);
  for (const ScoreNode& node : made.nodes_) {
    if (node.op != Op::read) continue;
    int& rank = made.ranks_[node.operand];
    if (rank != 0 && rank != node.count)
      refuse("score: operand " + std::to_string(node.operand) + " is read at " + std::to_string(rank) + " and at " +
             std::to_string(node.count) + " indices; expected as many as it has dimensions");
    rank = node.count;
    made.operands_ = std::max(made.operands_, node.operand + 1);
  }
  for (int i = 0; i < made.operands_; ++i)
    if (made.rank(i) == 0)
      refuse("score: operand " + std::to_string(i) + " is not read, and one behind it is; number them from 0");
  Slots slots(made.nodes_, {made.value_, made.slope_, made.bias_slope_});
  slots.assign();
  made.query_sides_ = slots.of_queries;
  made.key_sides_ = slots.of_keys;
  return made;
}

}  // namespace flashmask
