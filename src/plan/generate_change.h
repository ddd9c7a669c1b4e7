// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "flashmask/score_change.h"

namespace flashmask {

/// A change of scores as the text of `struct Change`, which kernels for GPUs are compiled with: it has value(s, down,
/// right), and the same with the slope, for scores behind the change's factor().
struct GeneratedChange {
  static constexpr std::size_t kMaxNumbers = 16;

  std::string text;
  std::vector<float> numbers;  ///< ChangeOperands::numbers: functions that differ in numbers alone have one text
  /// Which of ChangeOperands::tensors is the bias, behind the function's operands; −1: none. A table of distances needs
  /// key_length − query_length + origin as the first of ChangeOperands::integers.
  int bias_tensor = -1;
};

/// Throws Status::unsupported for ALiBi and for more than kMaxNumbers numbers.
GeneratedChange generate_change(const ScoreChange& change);

}  // namespace flashmask
