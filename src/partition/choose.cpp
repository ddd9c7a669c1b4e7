// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/bodies.h"
#include "base/checks.h"
#include "partition/balance.h"
#include "partition/checks.h"
#include "partition/measures.h"
#include "partition/moved_cuts.h"
#include "partition/simple.h"
#include "partition/split.h"
#include "schedule/free_cuts.h"

namespace flashmask {
namespace {

/// Returns the number of ranks over all levels; throws if there are none.
std::int32_t product(std::span<const std::int32_t> sizes) {
  std::int64_t ranks = sizes.empty() ? 0 : 1;
  for (const std::int32_t size : sizes) {
    if (size < 1) refuse("partition: a level has " + grouped(size) + " ranks; give at least one");
    ranks *= size;
    check_size("partition", "ranks", ranks);
  }
  if (ranks < 1) refuse("partition: there are no ranks; give how many there are, or a number a level");
  return static_cast<std::int32_t>(ranks);
}

/// Returns the number of rows, and columns, of every mask; throws if they differ.
std::int64_t common_tokens(std::span<const WeightedMask> masks) {
  if (masks.empty()) refuse("partition: there is no mask; give one at least");
  const std::int64_t tokens = masks.front().mask->shape().rows;
  for (const auto& [mask, weight] : masks) {
    const MaskShape& shape = mask->shape();
    if (shape.rows != shape.columns)
      refuse("partition: a mask is " + grouped(shape.rows) + " x " + grouped(shape.columns) +
             "; give masks with as many rows as columns");
    if (shape.rows != tokens)
      refuse("partition: one mask has " + grouped(tokens) + " rows and another " + grouped(shape.rows) +
             "; give masks of one sequence");
    if (weight < 1) refuse("partition: the weight of a mask is " + grouped(weight) + "; give at least 1");
  }
  return tokens;
}

/// Tries the candidates for the balanced partition and keeps the best one so far.
class Choice {
 public:
  Choice(const LayerWork& layers, std::int64_t tokens, std::span<const std::int32_t> sizes, std::int32_t ranks,
         const PartitionOptions& options)
      : layers_(layers),
        tokens_(tokens),
        sizes_(sizes),
        ranks_(ranks),
        node_(sizes.size() > 1 ? ranks / sizes.front() : 0),
        tile_(options.tile),
        prices_(options) {}

  void consider_cuts_at_tiles(Executor& executor) {
    const std::vector<Maker> makers = this->makers();
    std::vector<std::optional<Candidate>> made(makers.size());
    run_bodies(executor, static_cast<int>(makers.size()), [&](int i) {
      const auto& [why, owners] = makers[static_cast<std::size_t>(i)];
      made[static_cast<std::size_t>(i)] = priced(owners(), why);
    });
    for (std::optional<Candidate>& one : made) {
      tried_.push_back(one->partition);
      keep_better(std::move(*one));
    }
  }

  /// Tries the candidates once more with their cuts moved to free ones.
  void consider_free_cuts(std::span<const WeightedMask> masks, Executor& executor) {
    if (best_ && best_->time == best_->attention) return;
    if (longest_uncut() > tokens_ / ranks_ + most_tokens_over(tokens_, ranks_, tile_)) return;
    std::vector<const Mask*> all;
    for (const WeightedMask& one : masks) all.push_back(one.mask);
    const std::vector<std::int64_t> cuts = free_cuts(all, tokens_, executor);
    for (const Partition& partition : tried_) {
      const auto runs = moved_to_free_cuts(partition, cuts);
      if (runs) consider_free({tokens_, ranks_, *runs, tile_, partition.why() + ", cut where nothing crosses"});
    }
  }

  Partition take() { return std::move(best_->partition); }

 private:
  struct Candidate {
    Partition partition;
    bool even;
    std::int64_t time;
    std::int64_t attention;
  };

  const TileMeasures& measures() const { return layers_.measures(); }

  SplitAim priced_aim() const {
    const std::int64_t work = std::accumulate(measures().rows.begin(), measures().rows.end(), std::int64_t{0});
    // In picoseconds.
    return {0, std::max<std::int64_t>(1, prices_.attention(work / ranks_, measures().heads) / 1000),
            1000 * prices_.columns(tile_)};
  }

  /// A way to share out tiles.
  struct Maker {
    std::string why;
    std::function<TileOwners()> owners;
  };

  std::vector<Maker> makers() const {
    const std::int64_t tiles = std::ssize(measures().rows);
    std::vector<Maker> makers{{"contiguous", [=, this] { return contiguous_owners(tiles, ranks_); }},
                              {"zig-zag", [=, this] { return zigzag_owners(tiles, ranks_); }}};
    for (const std::int64_t tolerance : {5, 10, 20, 40}) {
      makers.push_back({"cut with a tolerance of " + grouped(tolerance) + " in 1,000",
                        [=, this] { return split({tolerance * 1000}); }});
    }
    makers.push_back({"cut by the price of work and traffic", [=, this] { return split(priced_aim()); }});
    return makers;
  }

  TileOwners split(const SplitAim& aim) const {
    TileOwners owners = split_owners(measures(), sizes_, aim);
    enlarge_last_owner(owners, ranks_);
    even_out(owners, measures().rows, ranks_);
    return owners;
  }

  Candidate priced(const TileOwners& owners, const std::string& why) const {
    Partition partition = of_owners(owners, tokens_, ranks_, tile_, why);
    const auto work = work_of_ranks(owners, measures().rows, ranks_);
    const std::int64_t time = layers_.time(partition, node_, prices_);
    return {std::move(partition), is_even(work, measures().rows), time, attention(work)};
  }

  void consider_free(Partition partition) {
    const std::vector<std::int64_t> work = work_between_cuts(partition);
    keep_better({std::move(partition), is_even(work, measures().rows), attention(work), attention(work)});
  }

  /// [ranks]: the work of each rank; ranks share the work of a row tile that is cut in proportion to its tokens.
  std::vector<std::int64_t> work_between_cuts(const Partition& partition) const {
    std::vector<std::int64_t> before(measures().rows.size() + 1);
    std::inclusive_scan(measures().rows.begin(), measures().rows.end(), before.begin() + 1);
    const auto work_before = [&](std::int64_t token) {
      const auto i = static_cast<std::size_t>(token / tile_);
      return token % tile_ == 0 ? before[i] : before[i] + measures().rows[i] * (token % tile_) / tile_;
    };
    std::vector<std::int64_t> work(static_cast<std::size_t>(ranks_));
    for (const auto& [span, rank] : partition.runs())
      work[static_cast<std::size_t>(rank)] +=
          (span.end == tokens_ ? before.back() : work_before(span.end)) - work_before(span.begin);
    return work;
  }

  /// Returns a lower bound on the longest stretch of tokens without a free cut: no cut is free inside a tile that other
  /// column tiles meet rows across.
  std::int64_t longest_uncut() const {
    std::int64_t longest = 0, tiles = 0;
    for (const std::int64_t passing : measures().passing) {
      tiles = passing == 0 ? 0 : tiles + 1;
      longest = std::max(longest, tiles);
    }
    return (longest - 1) * tile_;  // the last tile may be ragged
  }

  std::int64_t attention(std::span<const std::int64_t> work) const {
    return prices_.attention(std::ranges::max(work), measures().heads);
  }

  /// Prefers even work, then less time; on a tie the earlier candidate stays.
  void keep_better(Candidate candidate) {
    const auto worth = [](const Candidate& one) { return std::pair(!one.even, one.time); };
    if (!best_ || worth(candidate) < worth(*best_)) best_ = std::move(candidate);
  }

  const LayerWork& layers_;
  std::int64_t tokens_;
  std::span<const std::int32_t> sizes_;
  std::int32_t ranks_;
  std::int32_t node_;  ///< ranks per node; 0: there are no nodes
  std::int32_t tile_;
  Prices prices_;
  std::vector<Partition> tried_;
  std::optional<Candidate> best_;
};

Partition balanced(std::span<const WeightedMask> masks, std::span<const std::int32_t> sizes, std::int32_t ranks,
                   std::int64_t tokens, const PartitionOptions& options, Executor& executor) {
  const LayerWork layers(masks, options.tile, executor);
  Choice choice(layers, tokens, sizes, ranks, options);
  choice.consider_cuts_at_tiles(executor);
  if (!options.aligned) choice.consider_free_cuts(masks, executor);
  return choice.take();
}

}  // namespace

Partition partition(std::span<const WeightedMask> masks, std::span<const std::int32_t> sizes,
                    const PartitionOptions& options, Executor& executor) {
  check_options(options);
  const std::int32_t ranks = product(sizes);
  const std::int64_t tokens = common_tokens(masks);
  const std::int64_t tiles = (tokens + options.tile - 1) / options.tile;
  switch (options.division) {
    case Division::contiguous:
      return of_owners(contiguous_owners(tiles, ranks), tokens, ranks, options.tile, "contiguous");
    case Division::zigzag:
      return of_owners(zigzag_owners(tiles, ranks), tokens, ranks, options.tile, "zig-zag");
    case Division::balanced:
      break;
  }
  return balanced(masks, sizes, ranks, tokens, options, executor);
}

Partition partition(const Mask& mask, std::int32_t ranks, const PartitionOptions& options, Executor& executor) {
  const WeightedMask one{&mask, 1};
  return partition({&one, 1}, {&ranks, 1}, options, executor);
}

}  // namespace flashmask
