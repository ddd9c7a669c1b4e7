// SPDX-License-Identifier: Apache-2.0
#include "cpu/function_operands.h"

#include <algorithm>

#include "cpu/elements.h"
#include "plan/score_function_ops.h"

namespace flashmask::cpu {
namespace {

/// Tokens that are computed at once, node by node.
constexpr int kTokens = 16;

/// Whether a node is among what keys, or queries, have: its own, or a value that all tokens have.
bool belongs(const ScoreNode& node, bool of_keys) {
  return !node.of_pairs() && (node.depends & (of_keys ? ScoreNode::kQuery : ScoreNode::kKey)) == 0;
}

class SideNodes {
 public:
  SideNodes(const FunctionNodes& function, const HeadOperands& operands, bool of_keys)
      : function_(function), operands_(operands), of_keys_(of_keys) {}

  /// Computes tokens first … first + count − 1.
  void compute(std::int64_t first, int count, int capacity, float* out) {
    for (int i = 0; i < function_.count; ++i) {
      const ScoreNode& node = function_.nodes[i];
      if (!belongs(node, of_keys_)) continue;
      for (int t = 0; t < count; ++t) values_[i][t] = value_of_token(node, first + t, t);
      if (node.slot < 0 || node.of_keys() != of_keys_) continue;
      for (int t = 0; t < count; ++t) out[node.slot * capacity + t] = static_cast<float>(values_[i][t]);
    }
  }

 private:
  double value_of_token(const ScoreNode& node, std::int64_t token, int t) const {
    const auto arg = [&](int i) { return values_[node.args[i]][t]; };
    switch (node.op) {
      case ScoreOp::number:
        return node.number;
      case ScoreOp::b:
        return static_cast<double>(operands_.batch);
      case ScoreOp::h:
        return static_cast<double>(operands_.head);
      case ScoreOp::q:
      case ScoreOp::k:
        return static_cast<double>(token);
      case ScoreOp::read: {
        const TensorView& operand = operands_.operands[node.operand];
        std::int64_t offset = 0;
        for (std::size_t i = 0; i < node.count; ++i)
          offset += whole_index(arg(static_cast<int>(i)), operand.shape[i]) * operand.strides[i];
        return read_element(operand, offset);
      }
      case ScoreOp::where:
        return arg(0) != 0 ? arg(1) : arg(2);
      default:
        return value_of(node.op, arg(0), node.count > 1 ? arg(1) : 0);
    }
  }

  const FunctionNodes& function_;
  const HeadOperands& operands_;
  const bool of_keys_;
  double values_[ScoreFunction::kMaxNodes][kTokens];
};

}  // namespace

void compute_sides(const FunctionNodes& function, const HeadOperands& operands, bool of_keys, std::int64_t first,
                   int count, int capacity, float* out) {
  SideNodes nodes(function, operands, of_keys);
  for (int t = 0; t < count; t += kTokens) nodes.compute(first + t, std::min(kTokens, count - t), capacity, out + t);
  for (int slot = 0; slot < function.sides(of_keys) && count > 0; ++slot)
    std::fill(out + slot * capacity + count, out + (slot + 1) * capacity, out[slot * capacity + count - 1]);
}

void read_entries(const TensorView& operand, const TileArgument* indices, int lines, int width, float* out) {
  for (int line = 0; line < lines; ++line) {
    for (int lane = 0; lane < width; ++lane) {
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(operand.rank); ++i) {
        const TileArgument& index = indices[i];
        offset += whole_index(index.at[line * index.line_stride + lane * index.lane_step], operand.shape[i]) *
                  operand.strides[i];
      }
      out[line * width + lane] = read_element(operand, offset);
    }
  }
}

}  // namespace flashmask::cpu
