// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/partition.h"
#include "flashmask/tile.h"

namespace flashmask {

/// A set of ranks, one bit per rank.
using RankSet = std::vector<std::uint64_t>;

/// Finds which ranks hold rows of a stretch of tokens, in constant time: sets are stored for every 2^k consecutive runs
/// of a partition, and two of them cover any stretch.
class RankSets {
 public:
  /// Rows are counted in grains of `grain` tokens; every run begins at a multiple of it.
  RankSets(const Partition& partition, std::int64_t grain);

  RankSet none() const { return RankSet(words_); }

  /// Adds the ranks that hold rows [begin, end), which is not empty.
  void add(std::int64_t begin, std::int64_t end, RankSet& ranks) const {
    const std::int64_t first = run_of_[static_cast<std::size_t>(begin)];
    const std::int64_t last = run_of_[static_cast<std::size_t>(end - 1)];
    const int level = std::bit_width(static_cast<std::uint64_t>(last - first + 1)) - 1;
    const std::uint64_t* const a = set(level, first);
    const std::uint64_t* const b = set(level, last + 1 - (std::int64_t{1} << level));
    for (std::size_t i = 0; i < words_; ++i) ranks[i] |= a[i] | b[i];
  }

  /// Adds the ranks that see any column of a tile, in any batch entry or head. `columns` lists the row tiles, of one
  /// grain each, that see each of `tiles` column tiles, in (batch, head, tile) order.
  void add_viewers(const RunLists& columns, std::int64_t tile, std::int64_t tiles, RankSet& ranks) const;

 private:
  const std::uint64_t* set(int level, std::int64_t run) const {
    return sets_.data() + (static_cast<std::size_t>(level) * runs_ + static_cast<std::size_t>(run)) * words_;
  }

  std::size_t words_;
  std::size_t runs_;
  std::vector<std::int32_t> run_of_;  ///< [grains]
  std::vector<std::uint64_t> sets_;   ///< [levels, runs, words]: ranks of runs i … i + 2^level − 1
};

/// Calls body(rank) for each rank of a set, in ascending order.
template <class Body>
void for_each_rank(const RankSet& ranks, const Body& body) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::uint64_t word = ranks[i]; word != 0; word &= word - 1)
      body(static_cast<std::int32_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(word))));
  }
}

}  // namespace flashmask
