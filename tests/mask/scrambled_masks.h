// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "flashmask/mask.h"
#include "kit/random_numbers.h"

/// Masks whose tokens go by other names, and the lists of indices that name them.
namespace flashmask::test {

using Indices = std::vector<std::int64_t>;
using Pairs = std::vector<VisiblePair>;

inline Indices identity(std::int64_t length) {
  Indices order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline Indices random_order(std::int64_t length, check::RandomNumbers& random) {
  Indices order = identity(length);
  for (std::int64_t i = length - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random.below(i + 1))]);
  return order;
}

inline Indices inverse(const Indices& order) {
  Indices to(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) to[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return to;
}

template <class Sees>
Pairs pairs_where(std::int64_t rows, std::int64_t columns, const Sees& sees) {
  Pairs pairs;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      if (sees(i, j)) pairs.push_back({i, j});
    }
  }
  return pairs;
}

/// Row i of the pairs is renamed rows[i], column j columns[j].
inline Mask renamed(std::int64_t row_count, std::int64_t column_count, Pairs pairs, const Indices& rows,
                    const Indices& columns) {
  for (VisiblePair& pair : pairs)
    pair = {rows[static_cast<std::size_t>(pair.row)], columns[static_cast<std::size_t>(pair.column)]};
  return from_pairs(row_count, column_count, pairs);
}

/// A mask of `tokens` tokens, each of which goes by another name.
template <class Sees>
Mask scrambled(std::int64_t tokens, std::uint64_t seed, const Sees& sees) {
  check::RandomNumbers random(seed);
  const Indices names = random_order(tokens, random);
  return renamed(tokens, tokens, pairs_where(tokens, tokens, sees), names, names);
}

inline Mask scrambled_band(std::int64_t tokens, std::int64_t half_width, std::uint64_t seed = 1) {
  return scrambled(tokens, seed, [&](auto i, auto j) { return std::abs(i - j) <= half_width; });
}

}  // namespace flashmask::test
