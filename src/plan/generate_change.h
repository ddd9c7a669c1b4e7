// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/dtype.h"
#include "flashmask/score_change.h"
#include "plan/change_number.h"

namespace flashmask {

/// What the text of a change knows of a tensor that it reads, so that it reads without asking.
struct TensorForm {
  DType dtype = DType::f32;
  bool dense = true;       ///< neighbours along the last axis are neighbours in memory
  std::uint8_t wide = 0;   ///< a bit for each axis whose stride, in bytes, does not fit 32 bits
  bool absent = false;     ///< ALiBi's positions alone: tokens stand at their numbers
  bool of_rows = true;     ///< a bias alone: queries have values of their own
  bool in_eights = false;  ///< a bias alone: each eight 16-bit values of a row are 16 aligned bytes

  friend bool operator==(const TensorForm&, const TensorForm&) = default;
};

/// The forms of ChangeOperands::tensors: a function's operands, and behind them the bias, or ALiBi's slopes and
/// positions of queries and keys.
using TensorForms = std::array<TensorForm, 5>;

/// What plans are compiled for ahead of their first call: operands, and a table that a function reads, which was
/// computed for it, in float32; any other bias in the tensors' own dtype. A bias is each score's, a table one for all
/// queries, and ALiBi has no positions.
TensorForms usual_forms(const ScoreChange& change, DType dtype);

/// A change of scores as the text of `struct Change`, which kernels for GPUs are compiled with
/// (cuda/scores/score_change.cuh): it has value(product, down, right), the same with the slope, and, where a bias
/// is added, the same with the derivative by the bias.
struct GeneratedChange {
  static constexpr std::size_t kMaxNumbers = 32;

  std::string text;
  std::vector<ChangeNumber> numbers;  ///< ChangeOperands::numbers: functions that differ in numbers alone have one text
  /// Which of ChangeOperands::tensors is the bias, behind the function's operands; −1: none. ALiBi and a table of
  /// distances need key_length − query_length (+ origin) as the first of ChangeOperands::integers.
  int bias_tensor = -1;
};

/// Throws Status::unsupported for more than kMaxNumbers numbers.
GeneratedChange generate_change(const ScoreChange& change, const TensorForms& forms = {});

}  // namespace flashmask
