// SPDX-License-Identifier: Apache-2.0
#include "kit/error_bound.h"

#include <cmath>
#include <limits>

#include "kit/rounding.h"

namespace flashmask::check {
namespace {

/// |a − b|; infinite where either is NaN or only one is an infinity.
double difference(double a, double b) {
  if (a == b) return 0;
  const double size = std::abs(a - b);
  return std::isnan(size) ? std::numeric_limits<double>::infinity() : size;
}

/// The error of the dtype near `value` when 0.3 is added and subtracted again.
double rounding_near(DType dtype, double value) {
  const float raised = round_to(dtype, static_cast<float>(value) + 0.3F);
  return difference(round_to(dtype, raised - 0.3F), value);
}

}  // namespace

void ErrorBound::add(double output, double reference, double naive) {
  error_ = std::max(error_, difference(output, reference));
  naive_error_ = std::max(naive_error_, difference(naive, reference));
  rounding_ = std::max(rounding_, rounding_near(dtype_, reference));
  largest_ = std::max(largest_, std::abs(reference));
}

void ErrorBound::add(std::span<const double> output, std::span<const double> reference, std::span<const double> naive) {
  for (std::size_t i = 0; i < reference.size(); ++i) add(output[i], reference[i], naive[i]);
}

Comparison ErrorBound::result() const {
  return {error_, 2 * naive_error_ + 2 * rounding_ + 1e-5 * std::max(1.0, largest_)};
}

Comparison compare_lse(DType dtype, double lse, double reference) {
  const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-3;
  const double size = std::isinf(reference) ? 1 : std::max(1.0, std::abs(reference));
  return {difference(lse, reference), tolerance * size};
}

}  // namespace flashmask::check
