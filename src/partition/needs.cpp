// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "flashmask/schedule.h"
#include "flashmask/slice.h"
#include "mask/column_runs.h"
#include "partition/checks.h"
#include "partition/rank_sets.h"

namespace flashmask {
namespace {

/// Collects the needs of each rank; columns are added in ascending order.
class NeedLists {
 public:
  explicit NeedLists(std::int32_t ranks) : lists_(static_cast<std::size_t>(ranks)) {}

  void add(const RankSet& viewers, std::int32_t owner, const Span& columns) {
    for_each_rank(viewers, [&](std::int32_t rank) {
      if (rank == owner) return;
      std::vector<Need>& list = lists_[static_cast<std::size_t>(rank)];
      if (!list.empty() && list.back().owner == owner && list.back().columns.end == columns.begin) {
        list.back().columns.end = columns.end;
      } else {
        list.push_back({rank, owner, columns});
      }
    });
  }

  std::vector<Need> joined() const {
    std::vector<Need> all;
    for (const std::vector<Need>& list : lists_) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

 private:
  std::vector<std::vector<Need>> lists_;
};

bool is_plain(const LoweredMask& mask) { return mask.form() == MaskForm::intervals && mask.blocks() == nullptr; }

/// Returns the active tiles of every column of tiles.
RunLists columns_of(const LoweredMask& mask, TileShape tile, Executor& executor) {
  if (is_plain(mask)) return column_runs(mask.intervals(), tile, executor);
  return schedule(mask, tile, Visit::active, executor).columns();
}

/// Finds which ranks see which columns of a mask, from tiles whose rows belong to one rank each.
class ColumnViewers {
 public:
  ColumnViewers(const Mask& mask, TileShape tile, Executor& executor)
      : width_(tile.columns),
        tiles_((mask.shape().columns + width_ - 1) / width_),
        columns_(columns_of(mask.lowered(), tile, executor)) {}

  /// Adds the ranks that see any of `columns`, which are whole tiles, in any batch entry or head.
  void add(const Span& columns, const RankSets& holders, RankSet& viewers) const {
    for (std::int64_t tile = columns.begin / width_; tile * width_ < columns.end; ++tile)
      holders.add_viewers(columns_, tile, tiles_, viewers);
  }

 private:
  std::int64_t width_, tiles_;
  RunLists columns_;
};

/// Calls body(owner, columns) for each run's part of each tile of columns, in ascending order.
template <class Body>
void for_each_piece(const Partition& partition, const Body& body) {
  for (const RankRun& run : partition.runs()) {
    for (std::int64_t begin = run.tokens.begin, end = 0; begin < run.tokens.end; begin = end) {
      end = std::min((begin / partition.tile() + 1) * partition.tile(), run.tokens.end);
      body(run.rank, Span{begin, end});
    }
  }
}

/// Whether a piece is only a part of its tile.
bool is_part(const Partition& partition, const Span& piece) {
  return piece.begin % partition.tile() != 0 || (piece.end % partition.tile() != 0 && piece.end != partition.tokens());
}

/// Returns the pieces of the column tiles that a cut divides.
std::vector<Span> divided_columns(const Partition& partition) {
  std::vector<Span> columns;
  for_each_piece(partition, [&](std::int32_t, const Span& piece) {
    if (is_part(partition, piece)) columns.push_back(piece);
  });
  return columns;
}

}  // namespace

std::vector<Need> needs(const Partition& partition, const Mask& mask, Executor& executor) {
  check_mask_of("needs", partition, mask);
  // Rows are distinguished down to where ranks change. Doing so for every column would take long: for intervals only
  // the columns of tiles that a cut divides are, in a mask of their own.
  const std::int32_t grain = partition.grain();
  const bool plain = is_plain(mask.lowered());
  const std::vector<Span> divided = plain ? divided_columns(partition) : std::vector<Span>();
  const ColumnViewers whole(mask, {grain, plain ? partition.tile() : grain}, executor);
  std::optional<ColumnViewers> parts;
  if (!divided.empty()) {
    const Span rows[] = {{0, partition.tokens()}};
    parts.emplace(slice(mask, rows, divided, executor), TileShape{grain, grain}, executor);
  }
  const RankSets holders(partition, grain);
  NeedLists lists(partition.ranks());
  RankSet viewers = holders.none();
  std::int64_t begin = 0;  // where this part begins among all parts
  for_each_piece(partition, [&](std::int32_t owner, const Span& piece) {
    std::ranges::fill(viewers, 0);
    if (parts && is_part(partition, piece)) {
      const std::int64_t length = piece.end - piece.begin;
      parts->add({begin, begin + length}, holders, viewers);
      begin += length;
    } else {
      whole.add(piece, holders, viewers);
    }
    lists.add(viewers, owner, piece);
  });
  return lists.joined();
}

std::vector<Span> local_columns(const Partition& partition, std::span<const Need> needs, std::int32_t rank) {
  check_rank("local_columns", partition, rank);
  std::vector<Span> spans = partition.spans(rank);
  for (const Need& need : needs) {
    if (need.rank == rank) spans.push_back(need.columns);
  }
  std::ranges::sort(spans, {}, &Span::begin);
  std::vector<Span> joined;
  for (const Span& span : spans) {
    if (!joined.empty() && joined.back().end == span.begin) {
      joined.back().end = span.end;
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

}  // namespace flashmask
