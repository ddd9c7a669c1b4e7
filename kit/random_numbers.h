// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashmask::check {

/// SplitMix64 (Steele, Lea, Flood 2014). Unlike the distributions of <random>, the numbers of a seed are the same with
/// every standard library.
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();

  /// 0 … limit − 1; 0 for a limit below 1.
  std::int64_t below(std::int64_t limit);

  /// Standard normal.
  float normal();

 private:
  double uniform();

  std::uint64_t state_;
};

}  // namespace flashmask::check
