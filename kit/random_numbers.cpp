// SPDX-License-Identifier: Apache-2.0
#include "kit/random_numbers.h"

#include <cmath>
#include <numbers>

namespace flashmask::check {

std::uint64_t RandomNumbers::next() {
  std::uint64_t mixed = state_ += 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
  return mixed ^ (mixed >> 31);
}

std::int64_t RandomNumbers::below(std::int64_t limit) {
  return limit < 1 ? 0 : static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
}

double RandomNumbers::uniform() {
  return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53;  // strictly between 0 and 1
}

float RandomNumbers::normal() {
  // The Box-Muller transform.
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
}

}  // namespace flashmask::check
