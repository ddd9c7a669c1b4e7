// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/change_text.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "plan/bias_units.h"

namespace flashmask::cuda::compile {
namespace {

/// A text that was made, and what it was made of.
struct Made {
  ScoreChange change;
  TensorForms forms;
  double scale = 0;  // the softmax scale of the values of numbers
  GeneratedChange generated;
  std::array<float, ChangeOperands::kNumbers> values = {};
};

/// Whether two changes are the same value: functions are the same object, which does not take their texts.
bool is_same(const ScoreChange& a, const ScoreChange& b) {
  return std::ranges::equal(a.steps(), b.steps(), [](const ScoreStep& one, const ScoreStep& other) {
    return one.kind == other.kind && one.bias == other.bias && one.number == other.number &&
           one.function == other.function;
  });
}

/// Returns the generated change: the thread's last few are kept, since calls repeat them.
Made& made_of(const ScoreChange& change, const TensorForms& forms) {
  static_assert(ChangeOperands::kNumbers == GeneratedChange::kMaxNumbers);
  thread_local std::array<Made, 8> kept;
  thread_local std::size_t next = 0;
  for (Made& each : kept)
    if (!each.generated.text.empty() && is_same(each.change, change) && each.forms == forms) return each;
  Made made{change, forms, 0, generate_change(change, forms)};
  return kept[next++ % kept.size()] = std::move(made);
}

const Made& made_of(const Problem& problem, const TensorForms& forms) {
  Made& made = made_of(problem.change, forms);
  if (const double scale = problem.softmax_scale(); made.scale != scale) {
    std::ranges::transform(made.generated.numbers, made.values.begin(),
                           [&](const ChangeNumber& number) { return number.value(scale); });
    made.scale = scale;
  }
  return made;
}

TensorForm form_of(const TensorView& tensor) {
  TensorForm form{.dtype = tensor.dtype};
  const auto bytes = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (tensor.shape[i] == 1) continue;
    if (axis == tensor.rank - 1) form.dense = tensor.strides[i] == 1;
    if (std::abs(tensor.strides[i]) * bytes >= std::int64_t{1} << 31) form.wide |= static_cast<std::uint8_t>(1 << axis);
  }
  return form;
}

/// An absent tensor has data of null, and an axis that a tensor has not, or has one entry of, is never left.
ChangeTensor operand(const TensorView& tensor) {
  ChangeTensor made{tensor.data, {}, {}};
  const auto bytes = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    made.last[axis] = static_cast<int>(tensor.shape[i]) - 1;
    made.strides[axis] = tensor.shape[i] == 1 ? 0 : tensor.strides[i] * bytes;
  }
  return made;
}

/// (query_heads) as (1, query_heads).
ChangeTensor slopes(const TensorView& tensor) {
  ChangeTensor made = operand(tensor);
  if (tensor.rank != 1) return made;
  std::swap(made.last[0], made.last[1]);
  std::swap(made.strides[0], made.strides[1]);
  return made;
}

/// Which tensor is the bias: the first behind a function's operands.
std::size_t bias_number(const ScoreChange& change) {
  return change.function() == nullptr ? 0 : static_cast<std::size_t>(change.function()->operands());
}

/// Returns how far the entry of a table, or ALiBi's distance, lies from row − column.
int shift_of(const Problem& problem, std::int64_t origin) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;  // further from all entries than there are tokens
  return static_cast<int>(std::clamp(problem.key_length - problem.query_length + origin, -kFar, kFar));
}

}  // namespace

TensorForms forms_of(const ScoreChange& change, const ChangeTensors& tensors) {
  TensorForms forms;
  const std::size_t bias = bias_number(change);
  for (std::size_t i = 0; i < bias; ++i) forms[i] = form_of(tensors.operands[i]);
  if (change.bias() == ScoreBias::alibi) {
    forms[bias + 1] = form_of(tensors.alibi.query_positions);
    forms[bias + 2] = form_of(tensors.alibi.key_positions);
    forms[bias + 1].absent = forms[bias + 2].absent = !tensors.alibi.query_positions.present();
  } else if (change.bias() != ScoreBias::none) {
    const TensorView& values = tensors.bias.values;
    forms[bias] = form_of(values);
    forms[bias].of_rows = values.shape[2] > 1 && values.strides[2] != 0;
    forms[bias].in_eights = change.bias() == ScoreBias::tensor && forms[bias].of_rows && comes_in_eights(values);
  }
  return forms;
}

std::string change_text(const ScoreChange& change, const TensorForms& forms) {
  return made_of(change, forms).generated.text;
}

ChangeOperands change_operands(const Problem& problem, const ChangeTensors& tensors) {
  const Made& made = made_of(problem, forms_of(problem.change, tensors));
  ChangeOperands operands{};
  std::ranges::copy(made.values, operands.numbers);
  std::ranges::transform(tensors.operands, operands.tensors, operand);
  const std::size_t bias = bias_number(problem.change);
  if (problem.change.bias() == ScoreBias::alibi) {
    operands.tensors[bias] = slopes(tensors.alibi.slopes);
    operands.tensors[bias + 1] = operand(tensors.alibi.query_positions);
    operands.tensors[bias + 2] = operand(tensors.alibi.key_positions);
    operands.integers[0] = shift_of(problem, 0);
  } else if (made.generated.bias_tensor >= 0) {
    operands.tensors[bias] = operand(tensors.bias.values);
    operands.integers[0] = shift_of(problem, tensors.bias.origin);
  }
  return operands;
}

}  // namespace flashmask::cuda::compile
