// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "flashmask/partition.h"
#include "flashmask/schedule.h"
#include "flashmask/slice.h"
#include "kit/corpus.h"
#include "mask/visibility.h"
#include "partition/packs.h"

namespace flashmask {
namespace {

using testing::draw;
using testing::refusal;

std::vector<std::int64_t> tokens_of(const std::vector<Span>& spans) {
  std::vector<std::int64_t> tokens;
  for (const Span& span : spans) {
    for (std::int64_t token = span.begin; token < span.end; ++token) tokens.push_back(token);
  }
  return tokens;
}

/// Runs that begin at multiples of `grain`, of ranks in no order.
Partition random_partition(std::mt19937_64& random, std::int64_t tokens, std::int32_t ranks, std::int64_t grain,
                           std::int32_t tile) {
  std::vector<RankRun> runs;
  for (std::int64_t begin = 0; begin < tokens;) {
    const std::int64_t end = std::min(tokens, (begin / grain + draw(random, 1, 5)) * grain);
    runs.push_back({{begin, end}, static_cast<std::int32_t>(draw(random, 0, ranks - 1))});
    begin = end;
  }
  return {tokens, ranks, runs, tile};
}

/// The definition, score by score: a piece is needed where a row of the rank sees a column of it.
std::vector<Need> needs_by_scores(const Partition& partition, const Mask& mask) {
  const MaskShape& shape = mask.shape();
  const std::vector<std::uint8_t> scores = expand(mask);
  const auto sees = [&](const std::vector<std::int64_t>& rows, const Span& columns) {
    for (std::int64_t list = 0; list < shape.batch * shape.heads; ++list) {
      for (const std::int64_t row : rows) {
        for (std::int64_t column = columns.begin; column < columns.end; ++column) {
          if (scores[static_cast<std::size_t>((list * shape.rows + row) * shape.columns + column)] != 0) return true;
        }
      }
    }
    return false;
  };
  std::vector<Need> all;
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank) {
    const std::vector<std::int64_t> rows = tokens_of(partition.spans(rank));
    for (const auto& [run, owner] : partition.runs()) {
      for (std::int64_t begin = run.begin, end = 0; begin < run.end; begin = end) {
        end = std::min(run.end, (begin / partition.tile() + 1) * partition.tile());
        if (owner == rank || !sees(rows, {begin, end})) continue;
        const bool follows =
            !all.empty() && all.back().rank == rank && all.back().owner == owner && all.back().columns.end == begin;
        if (follows) {
          all.back().columns.end = end;
        } else {
          all.push_back({rank, owner, {begin, end}});
        }
      }
    }
  }
  return all;
}

/// Of all local masks together, each score of the mask is visible once, and no other.
void expect_whole(const Partition& partition, const Mask& mask, const std::vector<Need>& all) {
  const MaskShape& shape = mask.shape();
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns));
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank) {
    const std::vector<Span> local = local_columns(partition, all, rank);
    const std::vector<std::int64_t> rows = tokens_of(partition.spans(rank)), columns = tokens_of(local);
    const std::vector<std::uint8_t> scores = expand(slice(mask, partition.spans(rank), local));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::size_t column = i % columns.size(), row = i / columns.size() % rows.size();
      const auto list = static_cast<std::int64_t>(i / columns.size() / rows.size());
      seen[static_cast<std::size_t>((list * shape.rows + rows[row]) * shape.columns + columns[column])] += scores[i];
    }
  }
  EXPECT_EQ(seen, expand(mask));
}

TEST(Needs, AreTheColumnsThatAreSeenAndNoOthers) {
  std::mt19937_64 random(1);
  for (const corpus::Entry& entry : corpus::entries()) {
    const corpus::Size size{150, 150, 2};
    if (!entry.accepts(size)) continue;
    const Mask mask = entry.build(size);
    for (const std::int64_t grain : {16, 8, 1}) {
      SCOPED_TRACE(entry.name + ", cut at multiples of " + std::to_string(grain));
      const Partition made = random_partition(random, 150, 4, grain, 16);
      const std::vector<Need> all = needs(made, mask);
      EXPECT_EQ(all, needs_by_scores(made, mask));
      expect_whole(made, mask, all);
    }
  }
}

TEST(Needs, OfBatchEntriesAndHeadsAreJoined) {
  const Mask causal = masks::causal(64, 64), window = masks::sliding_window(64, 64, 4);
  const Mask heads[] = {window, causal}, batch[] = {window, window};
  const Partition made(64, 2, {{{0, 32}, 0}, {{32, 64}, 1}}, 16);
  EXPECT_EQ(needs(made, stack_heads(heads)), needs(made, causal));
  EXPECT_EQ(needs(made, stack_batch(batch)), needs(made, window));
  EXPECT_EQ(needs(made, window), (std::vector<Need>{{1, 0, {16, 32}}}));
}

TEST(Needs, OfManyRanksAreThoseOfTheScores) {
  std::mt19937_64 random(2);
  const Mask mask = testing::long_tail(600, 3);
  for (const std::int32_t ranks : {64, 65, 1024}) {
    const Partition made = random_partition(random, 600, ranks, 2, 2);
    EXPECT_EQ(needs(made, mask), needs_by_scores(made, mask));
  }
}

TEST(Loads, CountTheTilesOfLocalMasksAndTheColumnsOfNeeds) {
  std::mt19937_64 random(4);
  const Mask heads[] = {testing::long_tail(1000, 4), masks::sliding_window(1000, 1000, 70)};
  const Mask mask = stack_heads(heads);
  for (const std::int64_t grain : {16, 3}) {
    const Partition made = random_partition(random, 1000, 5, grain, 16);
    const std::vector<Need> all = needs(made, mask);
    std::vector<RankLoad> expected(5);
    for (const Need& need : all) {
      expected[static_cast<std::size_t>(need.rank)].received += need.columns.end - need.columns.begin;
      expected[static_cast<std::size_t>(need.owner)].sent += need.columns.end - need.columns.begin;
    }
    const std::vector<RankLoad> found = loads(made, mask);
    for (std::int32_t rank = 0; rank < 5; ++rank) {
      const RankLoad& load = found[static_cast<std::size_t>(rank)];
      const std::vector<Span>& own = made.spans(rank);
      const Mask local = slice(mask, own, local_columns(made, all, rank));
      EXPECT_EQ(load.tokens, made.length(rank));
      EXPECT_EQ(load.tiles, schedule(local.lowered(), {16, 16}).counts().active());
      EXPECT_EQ(load.row_tiles, 2 * ((made.length(rank) + 15) / 16));
      const Mask keys = slice(mask, std::vector<Span>{{0, 1000}}, own);
      EXPECT_EQ(load.column_tiles, schedule(keys.lowered(), {16, 16}).counts().active());
      EXPECT_EQ(load.received, expected[static_cast<std::size_t>(rank)].received);
      EXPECT_EQ(load.sent, expected[static_cast<std::size_t>(rank)].sent);
    }
  }
}

TEST(Predict, PricesWorkByHeadsAndColumnsByBytes) {
  // 2 x 7 x 128 x 128 x 128 x 32 = 939,524,096 operations a tile of all heads, at 600,000 a nanosecond.
  const MaskShape shape{1, 1, 256, 256};
  const std::vector<RankLoad> loads{{128, 1, 1, 2, 128, 0}, {128, 2, 1, 1, 0, 128}};
  const PredictedTime time = predict(loads, shape, {});
  EXPECT_EQ(time.attention, 4 * 1565);
  EXPECT_EQ(time.ideal, 7 * 1565 / 2);
  // 8 heads of 128 by (4 x 2 + 8) bytes a column at 260 a nanosecond, and three exchanges.
  EXPECT_EQ(time.wire, 128 * 16384 / 260 + 3 * 80'000);
  EXPECT_EQ(predict(std::vector<RankLoad>{{128, 1, 1, 1, 0, 0}}, shape, {}).wire, 0);
}

TEST(Needs, RefuseAnotherMaskAndNoRank) {
  const Partition made(100, 2, {{{0, 50}, 0}, {{50, 100}, 1}});
  EXPECT_EQ(refusal([&] { needs(made, masks::causal(100, 90)); }),
            "needs: the mask is 100 x 90 but the partition has 100 tokens; give the mask that was partitioned");
  EXPECT_EQ(refusal([&] { local_columns(made, {}, 2); }), "local_columns: rank is 2; give 0 to 1");
}

}  // namespace
}  // namespace flashmask
