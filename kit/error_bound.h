// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "flashmask/tensor.h"

namespace flashmask::check {

/// A largest error and the error that is allowed (docs/masks.md, the reference error bound).
struct Comparison {
  double error = 0;
  double bound = 0;

  double ratio() const { return bound > 0 ? error / bound : error; }
};

/// Collects, value by value, the largest error of an output and the bound that its dtype allows.
class ErrorBound {
 public:
  explicit ErrorBound(DType dtype) : dtype_(dtype) {}

  void add(double output, double reference, double naive);
  void add(std::span<const double> output, std::span<const double> reference, std::span<const double> naive);

  Comparison result() const;

 private:
  DType dtype_;
  double error_ = 0, naive_error_ = 0, rounding_ = 0, largest_ = 0;
};

/// Compares one value of lse with its bound; each value has its own.
Comparison compare_lse(DType dtype, double lse, double reference);

/// Returns the comparison whose error is the larger part of its bound.
inline const Comparison& worse(const Comparison& a, const Comparison& b) { return a.ratio() >= b.ratio() ? a : b; }

}  // namespace flashmask::check
