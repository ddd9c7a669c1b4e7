// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/change_text.h"

#include <algorithm>

#include "plan/generate_change.h"

namespace flashmask::cuda::compile {
namespace {

using Kind = ScoreStep::Kind;

/// Where operands lie that a bias reads.
enum BiasOperand { kSlopes = 0, kQueryPositions = 1, kKeyPositions = 2, kValues = 0 };
constexpr int kShift = 0;  // of integers

constexpr double kTwoLog2E = 2.88539008177792681;

std::string constructor(ScoreBias bias) {
  switch (bias) {
    case ScoreBias::none:
      return R"(
  const ChangeOperands& operands;

  __device__ __forceinline__ Change(const ChangeOperands& given, int, int, int, int) : operands(given) {}
)";
    case ScoreBias::alibi:
      return R"(
  const ChangeOperands& operands;
  int batch, row, column;
  float penalty;

  __device__ __forceinline__ Change(const ChangeOperands& given, int of_batch, int head, int of_row, int of_column)
      : operands(given), batch(of_batch), row(of_row), column(of_column), penalty(at_float32(given.tensors[0], of_batch, head)) {}
)";
    default:
      return R"(
  const ChangeOperands& operands;
  int batch, head, row, column;

  __device__ __forceinline__ Change(const ChangeOperands& given, int of_batch, int of_head, int of_row, int of_column)
      : operands(given), batch(of_batch), head(of_head), row(of_row), column(of_column) {}
)";
  }
}

std::string added(ScoreBias bias) {
  switch (bias) {
    case ScoreBias::alibi:
      return R"(
    if (operands.tensors[1].data == nullptr)
      score -= penalty * fabsf(static_cast<float>(row + operands.integers[0] - column + (down - right)));
    else
      score -= penalty * fabsf(at_float32(operands.tensors[1], batch, row + down) -
                               at_float32(operands.tensors[2], batch, column + right));
)";
    case ScoreBias::tensor:
      return R"(
    score += at(operands.tensors[0], batch, head, row + down, column + right);
)";
    default:
      return R"(
    const int entry = row + operands.integers[0] - column + (down - right);
    if (entry >= 0 && entry < operands.tensors[0].sizes[3])
      score += at(operands.tensors[0], batch, head, row + down, entry);
)";
  }
}

std::string number(int index) { return "operands.numbers[" + std::to_string(index) + "]"; }

/// The code of a step, whose numbers begin at `first`.
std::string code_of(const ScoreStep& step, int& first) {
  if (step.kind == Kind::add) return added(step.bias);
  const std::string size = number(first++);
  if (step.kind == Kind::multiply) return "\n    score *= " + size + ";\n    slope *= " + size + ";\n";
  const std::string exponent = number(first++);
  return "\n    score = tanh_of_power(score * " + exponent +
         ");\n    slope *= fmaf(-score, score, 1);\n    score *= " + size + ";\n";
}

bool is_sloped(const ScoreChange& change) {
  return std::ranges::any_of(change.steps(), [](const ScoreStep& step) { return step.kind != Kind::add; });
}

/// An absent tensor has data of null, and an axis that a tensor has not, or has one entry of, is never left.
ChangeTensor operand(const TensorView& tensor) {
  ChangeTensor made{tensor.data, {}, {1, 1, 1, 1}, tensor.dtype};
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    made.sizes[axis] = static_cast<int>(tensor.shape[i]);
    made.strides[axis] = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
  }
  return made;
}

/// (query_heads) as (1, query_heads).
ChangeTensor slopes(const TensorView& tensor) {
  ChangeTensor made = operand(tensor);
  if (tensor.rank != 1) return made;
  std::swap(made.sizes[0], made.sizes[1]);
  std::swap(made.strides[0], made.strides[1]);
  return made;
}

}  // namespace

std::string change_text(const ScoreChange& change) {
  if (change.bias() != ScoreBias::alibi) return generate_change(change).text;
  const auto word = [](bool value) { return std::string(value ? "true" : "false"); };
  std::string steps;
  int numbers = 0;
  for (const ScoreStep& step : change.steps()) steps += code_of(step, numbers);
  return "struct Change {\n  static constexpr bool kLocates = " + word(change.bias() != ScoreBias::none) +
         ", kSlope = " + word(is_sloped(change)) + ", kGuards = false;" + constructor(change.bias()) + R"(
  __device__ __forceinline__ float value(float score, int down, int right) const {
    float slope;
    return value(score, down, right, slope);
  }
  __device__ __forceinline__ float value(float score, [[maybe_unused]] int down, [[maybe_unused]] int right, float& slope) const {
    slope = 1;
)" + steps +
         R"(
    return score;
  }
};
)";
}

namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 30;  // further from all entries than there are tokens

/// Returns how far the entry of a table lies from row − column.
int shift_of(const Problem& problem, const BiasTensor& bias) {
  return static_cast<int>(std::clamp(problem.key_length - problem.query_length + bias.origin, -kFar, kFar));
}

ChangeOperands operands_of_function(const Problem& problem, const BiasTensor& bias, const ScoreOperands& operands) {
  ChangeOperands made{};
  const GeneratedChange generated = generate_change(problem.change);
  std::ranges::copy(generated.numbers, made.numbers);
  std::ranges::transform(operands, made.tensors, operand);
  if (generated.bias_tensor >= 0) {
    made.tensors[generated.bias_tensor] = operand(bias.values);
    made.integers[kShift] = shift_of(problem, bias);
  }
  return made;
}

}  // namespace

ChangeOperands change_operands(const Problem& problem, const AlibiTensors& alibi, const BiasTensor& bias,
                               const ScoreOperands& operands) {
  if (problem.change.bias() != ScoreBias::alibi) return operands_of_function(problem, bias, operands);
  ChangeOperands made{};
  int count = 0;
  for (const ScoreStep& step : problem.change.steps()) {
    if (step.kind == Kind::add) continue;
    made.numbers[count++] = static_cast<float>(step.number);
    if (step.kind == Kind::cap) made.numbers[count++] = static_cast<float>(kTwoLog2E / step.number);
  }
  if (problem.change.bias() == ScoreBias::alibi) {
    made.tensors[kSlopes] = slopes(alibi.slopes);
    made.tensors[kQueryPositions] = operand(alibi.query_positions);
    made.tensors[kKeyPositions] = operand(alibi.key_positions);
    made.integers[kShift] = static_cast<int>(problem.key_length - problem.query_length);
  } else if (has_bias_tensor(problem)) {
    made.tensors[kValues] = operand(bias.values);
    made.integers[kShift] = shift_of(problem, bias);
  }
  return made;
}

}  // namespace flashmask::cuda::compile
