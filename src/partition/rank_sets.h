// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/partition.h"
#include "flashmask/tile.h"

namespace flashmask {

/// A set of ranks: a bit each.
using RankSet = std::vector<std::uint64_t>;

/// Which ranks hold rows of a stretch of tokens, in constant time: sets are kept for every 2^k runs of a partition, and
/// two of them cover any number.
class RankSets {
 public:
  /// Rows are counted in `unit` tokens, which divides where each run begins.
  RankSets(const Partition& partition, std::int64_t unit);

  RankSet none() const { return RankSet(words_); }

  /// Adds the ranks that hold rows [begin, end), not empty.
  void add(std::int64_t begin, std::int64_t end, RankSet& ranks) const {
    const std::int64_t first = run_of_[static_cast<std::size_t>(begin)];
    const std::int64_t last = run_of_[static_cast<std::size_t>(end - 1)];
    const int level = std::bit_width(static_cast<std::uint64_t>(last - first + 1)) - 1;
    const std::uint64_t* const a = set(level, first);
    const std::uint64_t* const b = set(level, last + 1 - (std::int64_t{1} << level));
    for (std::size_t i = 0; i < words_; ++i) ranks[i] |= a[i] | b[i];
  }

  /// Adds the ranks that see any of a column tile, in any batch entry or head. `columns`: the row tiles, of a unit
  /// each, that see each of `tiles` column tiles, in (batch, head, tile) order.
  void add_viewers(const RunLists& columns, std::int64_t tile, std::int64_t tiles, RankSet& ranks) const;

 private:
  const std::uint64_t* set(int level, std::int64_t run) const {
    return sets_.data() + (static_cast<std::size_t>(level) * runs_ + static_cast<std::size_t>(run)) * words_;
  }

  std::size_t words_;
  std::size_t runs_;
  std::vector<std::int32_t> run_of_;  ///< [units]
  std::vector<std::uint64_t> sets_;   ///< [levels, runs, words]: ranks of runs i … i + 2^level − 1
};

/// Calls body(rank) for each in a set, ascending.
template <class Body>
void for_each_rank(const RankSet& ranks, const Body& body) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::uint64_t word = ranks[i]; word != 0; word &= word - 1)
      body(static_cast<std::int32_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(word))));
  }
}

}  // namespace flashmask
