// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashmask::check {

/// SplitMix64 (Steele, Lea, Flood 2014). Unlike the distributions of <random>, a seed gives the same numbers with every
/// standard library.
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();

  /// A number from 0 to limit − 1; 0 for a limit below 1.
  std::int64_t below(std::int64_t limit);

  /// A standard normal number.
  float normal();

 private:
  double uniform();

  std::uint64_t state_;
};

}  // namespace flashmask::check
