#include <algorithm>

#include "partition/checks.h"
#include "partition/rank_sets.h"
#include "partition/tile_work.h"

namespace flashmask {
namespace {

/// Needs of each rank, which come in ascending order of columns.
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

}  // namespace

std::vector<Need> needs(const Partition& partition, const Mask& mask, Executor& executor) {
  check_mask_of("needs", partition, mask);
  // Where cuts are not at tiles, visibility is told in tiles so small that they are.
  const std::int64_t unit = partition.grain();
  const TileWork work(mask, partition.grain(), executor);
  const RankSets holders(partition, unit);
  NeedLists lists(partition.ranks());
  RankSet viewers = holders.none();
  for (const RankRun& run : partition.runs()) {
    for (std::int64_t begin = run.tokens.begin, end = 0; begin < run.tokens.end; begin = end) {
      end = std::min((begin / partition.tile() + 1) * partition.tile(), run.tokens.end);
      std::ranges::fill(viewers, 0);
      for (std::int64_t column = begin / unit; column * unit < end; ++column)
        work.add_viewers(column, holders, viewers);
      lists.add(viewers, run.rank, {begin, end});
    }
  }
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
