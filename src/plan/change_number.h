// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numbers>

namespace flashmask {

/// A number in the text of a change of scores: number · scale^scales · |scale|^sizes · (log₂ e)^logs. Kernels read its
/// value from ChangeOperands::numbers, so that texts differ neither by the softmax scale nor by numbers.
struct ChangeNumber {
  double number = 1;
  int scales = 0, sizes = 0, logs = 0;

  bool is_plain() const { return scales == 0 && sizes == 0 && logs == 0; }
  bool is(double value) const { return is_plain() && number == value; }
  ChangeNumber size() const { return {std::abs(number), 0, sizes + scales, logs}; }

  float value(double softmax_scale) const {
    return static_cast<float>(number * std::pow(softmax_scale, scales) * std::pow(std::abs(softmax_scale), sizes) *
                              std::pow(std::numbers::log2e, logs));
  }

  friend ChangeNumber operator*(const ChangeNumber& a, const ChangeNumber& b) {
    return {a.number * b.number, a.scales + b.scales, a.sizes + b.sizes, a.logs + b.logs};
  }
  friend bool operator==(const ChangeNumber&, const ChangeNumber&) = default;

  /// Whether their sum is such a number.
  bool adds_to(const ChangeNumber& other) const {
    return scales == other.scales && sizes == other.sizes && logs == other.logs;
  }
  ChangeNumber plus(const ChangeNumber& other) const { return {number + other.number, scales, sizes, logs}; }
};

}  // namespace flashmask
