// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Where the tokens of one axis lie for kernels whose tiles begin where islands of a mask begin. Tokens are cut into
/// units of at most `size` tokens, and unit u takes the places [u · size, (u + 1) · size): tiles are a grid over
/// places. Files compiled for other instruction sets include this, so no function here may be emitted out of line.
namespace flashmask {

/// The tokens [begin, end) of one unit.
struct Unit {
  std::int32_t begin;
  std::int32_t end;

  friend bool operator==(const Unit&, const Unit&) = default;
};

/// Consecutive tokens.
struct TokenRun {
  std::int64_t first;
  std::int64_t count;
};

/// The units of one batch entry; without any, a token's place is its number.
struct PlacedTokens {
  const Unit* units = nullptr;
  std::int64_t count = 0;   ///< of units
  std::int64_t size = 1;    ///< places of a unit
  std::int64_t tokens = 0;  ///< of the axis

  /// Returns the tokens at `wanted` places from `place` on, which lie in one unit: fewer than wanted, or none, where
  /// the unit, or the axis, ends before.
  [[gnu::always_inline]] TokenRun at(std::int64_t place, std::int64_t wanted) const {
    std::int64_t first = place, end = tokens;
    if (units != nullptr) {
      if (place / size >= count) return {tokens, 0};
      const Unit& unit = units[place / size];
      first = unit.begin + place % size;
      end = unit.end;
    }
    const std::int64_t left = end - first;
    return {first, left <= 0 ? 0 : (left < wanted ? left : wanted)};
  }
};

}  // namespace flashmask
