// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <vector>

#include "flashmask/score_function.h"

namespace flashmask {

/// Makes a ScoreFunction. Nodes are named by their numbers; equal ones are one, and constants are computed at once.
class ScoreFunctionBuilder {
 public:
  int leaf(ScoreOp op) { return add({.op = op}); }
  int number(double value);
  int read(int operand, const std::vector<int>& indices);
  int node(ScoreOp op, std::initializer_list<int> args);
  int node(ScoreOp op, const std::vector<int>& args);
  /// Adds the value of another function, of which `score` takes the place of the score.
  int call(const ScoreFunction& function, int score);

  /// Returns the function of a value, with its derivatives. Throws Status::invalid_argument as ScoreFunction::parse().
  ScoreFunction function(int value);

 private:
  int add(ScoreNode node);
  /// Returns the node that a simpler rule gives; −1: none does.
  int simpler(ScoreOp op, const std::vector<int>& args);
  int derivative(int node, ScoreOp by, std::vector<int>& known);
  int derivative_of_operation(int node, ScoreOp by, std::vector<int>& known);
  bool is(int node, double value) const;

  std::vector<ScoreNode> nodes_;
};

}  // namespace flashmask
