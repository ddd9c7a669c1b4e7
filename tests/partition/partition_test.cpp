// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "flashmask/schedule.h"
#include "kit/corpus.h"
#include "mask/visibility.h"
#include "partition/packs.h"

namespace flashmask {
namespace {

using testing::long_tail;
using testing::refusal;
using testing::short_documents;

constexpr std::int32_t kRanks[] = {1, 2, 3, 5, 8, 64, 1024};

Partition of(const Mask& mask, std::int32_t ranks, const PartitionOptions& options) {
  return partition(mask, ranks, options);
}

/// [tokens]: who holds each, told from what each rank says that it holds; -1 where nobody does.
std::vector<std::int32_t> holders(const Partition& partition) {
  std::vector<std::int32_t> holders(static_cast<std::size_t>(partition.tokens()), -1);
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank) {
    for (const Span& span : partition.spans(rank)) {
      for (std::int64_t token = span.begin; token < span.end; ++token) {
        EXPECT_EQ(holders[static_cast<std::size_t>(token)], -1) << "token " << token << " is held twice";
        holders[static_cast<std::size_t>(token)] = rank;
      }
    }
  }
  return holders;
}

void expect_each_token_once(const Partition& partition) {
  EXPECT_EQ(std::ranges::count(holders(partition), -1), 0);
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank)
    EXPECT_TRUE(std::ranges::is_sorted(partition.spans(rank), {}, &Span::begin));
}

void expect_even_lengths(const Partition& partition) {
  std::int64_t least = partition.tokens(), most = 0;
  for (std::int32_t rank = 0; rank < partition.ranks(); ++rank) {
    least = std::min(least, partition.length(rank));
    most = std::max(most, partition.length(rank));
  }
  const std::int64_t share = partition.tokens() / partition.ranks();
  EXPECT_LE(most - least,
            partition.aligned() ? partition.tile() : std::max<std::int64_t>(partition.tile(), share / 50));
}

/// The most work less the mean, and the work of the dearest row tile, from a schedule of the whole mask.
void expect_even_work(const Partition& partition, const Mask& mask) {
  std::int64_t most = 0, sum = 0, dearest = 0;
  for (const RankLoad& load : loads(partition, mask)) {
    most = std::max(most, load.work());
    sum += load.work();
  }
  const TileSchedule tiles = schedule(mask.lowered(), {partition.tile(), partition.tile()});
  for (std::int64_t row = 0; row < tiles.row_tiles(); ++row) {
    std::int64_t work = 0;
    for (std::int64_t list = 0; list < mask.shape().batch * mask.shape().heads; ++list) {
      work += 2;
      for (const Run& run : tiles.row_runs(list / mask.shape().heads, list % mask.shape().heads, row))
        work += run.end - run.begin;
    }
    dearest = std::max(dearest, work);
  }
  const std::int64_t mean = sum / partition.ranks();
  EXPECT_LE(most, std::max(mean * 103 / 100 + 1, mean + dearest + 1)) << partition.why();
}

TEST(Partition, IsFairUnderEveryMaskForAnyNumberOfRanks) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const std::int64_t tokens : {1, 127, 130, 1000}) {
      const corpus::Size size{tokens, tokens, 2};
      if (!entry.accepts(size)) continue;
      const Mask mask = entry.build(size);
      for (const std::int32_t ranks : kRanks) {
        for (const bool aligned : {false, true}) {
          SCOPED_TRACE(entry.name + " of " + std::to_string(tokens) + " over " + std::to_string(ranks));
          const Partition made = of(mask, ranks, {.aligned = aligned, .tile = 16});
          ASSERT_EQ(made.ranks(), ranks);
          EXPECT_TRUE(made.aligned() || !aligned);
          expect_each_token_once(made);
          expect_even_lengths(made);
          expect_even_work(made, mask);
        }
      }
    }
  }
}

TEST(Partition, OfLongPacksIsEvenWithinThreePercentOrATile) {
  for (const std::int64_t tokens : {131072, 131072 + 77}) {
    for (const Mask& mask : {masks::causal(tokens, tokens), long_tail(tokens, 1), short_documents(tokens, 2),
                             masks::sliding_window(tokens, tokens, 4096)}) {
      for (const std::int32_t ranks : kRanks) {
        SCOPED_TRACE(mask.description() + " over " + std::to_string(ranks));
        const Partition made = of(mask, ranks, {.aligned = true});
        expect_each_token_once(made);
        expect_even_lengths(made);
        expect_even_work(made, mask);
      }
    }
  }
}

TEST(Partition, ContiguousAndZigzagDealEvenNumbersOfTiles) {
  for (const Division division : {Division::contiguous, Division::zigzag}) {
    for (const std::int64_t tokens : {0, 1, 100, 128, 1000, 4096, 4097}) {
      for (const std::int32_t ranks : kRanks) {
        const Partition made = of(masks::full(tokens, tokens), ranks, {.division = division});
        expect_each_token_once(made);
        expect_even_lengths(made);
        EXPECT_LE(std::ssize(made.runs()), ranks * (division == Division::zigzag ? 2 : 1));
      }
    }
  }
}

TEST(Partition, ZigzagPairsTheFirstTilesWithTheLast) {
  const Partition made = of(masks::causal(1024, 1024), 2, {.division = Division::zigzag});
  EXPECT_EQ(made.spans(0), (std::vector<Span>{{0, 256}, {768, 1024}}));
  EXPECT_EQ(made.spans(1), (std::vector<Span>{{256, 768}}));
}

TEST(Partition, CutsShortDocumentsWhereNothingCrosses) {
  const Mask mask = short_documents(131072, 3);
  for (const std::int32_t ranks : {2, 8}) {
    const Partition made = of(mask, ranks, {});
    EXPECT_TRUE(needs(made, mask).empty()) << made.why();
    EXPECT_FALSE(needs(of(mask, ranks, {.aligned = true}), mask).empty());
  }
}

TEST(Partition, CutsSharedBitsWhereNothingCrosses) {
  // Blocks of 1,000 tokens whose tokens see every second one of their own block: no intervals.
  const Mask mask = from_predicate({1, 1, 8000, 8000}, [](auto, auto, std::int64_t i, std::int64_t j) {
    return i / 1000 == j / 1000 && (i + j) % 2 == 0;
  });
  ASSERT_EQ(mask.lowered().form(), MaskForm::bits);
  const Partition made = of(mask, 4, {});
  EXPECT_TRUE(needs(made, mask).empty()) << made.why();
  for (const RankRun& run : made.runs()) EXPECT_EQ(run.tokens.begin % 1000, 0);
}

TEST(Partition, OfAWindowStaysContiguousForItsFewBytes) {
  const Mask mask = masks::sliding_window(131072, 131072, 4096);
  for (const RankLoad& load : loads(of(mask, 8, {}), mask)) EXPECT_LE(load.sent, 4096);
}

TEST(Partition, SharesOutTheColumnsThatManyNeed) {
  // The first columns of the long document belong to cheap rows, and everybody needs them: one rank may not have them
  // all. By tokens and row work alone the busiest has 1.6 times the mean.
  std::vector<std::int64_t> documents(62, 500);
  documents.insert(documents.begin(), 100'000);
  const Mask mask = masks::causal_document(documents, 131072);
  std::int64_t most = 0, sum = 0;
  for (const RankLoad& load : loads(of(mask, 8, {}), mask)) {
    most = std::max(most, load.column_tiles);
    sum += load.column_tiles;
  }
  EXPECT_LE(most * 8 * 10, sum * 11);
}

TEST(Partition, OfNodesCutsBetweenThemFirst) {
  const Mask mask = long_tail(131072, 5);
  const auto crossing = [&](const Partition& made) {
    std::int64_t columns = 0;
    for (const Need& need : needs(made, mask)) {
      if (need.rank / 8 != need.owner / 8) columns += need.columns.end - need.columns.begin;
    }
    return columns;
  };
  const WeightedMask one{&mask, 1};
  const std::int32_t sizes[] = {3, 8};
  const Partition nodes = partition({&one, 1}, sizes, {.aligned = true});
  EXPECT_EQ(nodes.ranks(), 24);
  expect_each_token_once(nodes);
  expect_even_lengths(nodes);
  expect_even_work(nodes, mask);
  EXPECT_LE(crossing(nodes), crossing(of(mask, 24, {.aligned = true})));
  // Where nothing but that costs, less of it passes.
  PartitionOptions slow{.aligned = true};
  slow.node_bytes_per_ns = 1;
  EXPECT_LE(crossing(partition({&one, 1}, sizes, slow)), crossing(nodes));
}

TEST(Partition, OfOneLevelAndOfTwoAgreeWherePowersOfTwoNest) {
  const Mask mask = long_tail(65536, 6);
  const WeightedMask one{&mask, 1};
  const std::int32_t two[] = {4, 16};
  EXPECT_EQ(partition({&one, 1}, two), partition(mask, 64));
}

TEST(Partition, WeighsTheMasksOfAModelsLayers) {
  const std::int64_t tokens = 65536;
  const Mask window = masks::sliding_window(tokens, tokens, 1024), full = masks::causal(tokens, tokens);
  const WeightedMask both[] = {{&window, 5}, {&full, 1}};
  const std::int32_t ranks[] = {8};
  const Partition made = partition(both, ranks);
  std::vector<std::int64_t> work(8);
  for (const auto& [mask, weight] : both) {
    const std::vector<RankLoad> of_mask = loads(made, *mask);
    for (std::size_t rank = 0; rank < 8; ++rank) work[rank] += weight * of_mask[rank].work();
  }
  const std::int64_t mean = std::accumulate(work.begin(), work.end(), std::int64_t{0}) / 8;
  EXPECT_LE(std::ranges::max(work), mean * 103 / 100 + 1);
}

/// FNV-1a over everything that a partition and its needs say.
std::uint64_t hash(const Partition& partition, const std::vector<Need>& needs) {
  std::uint64_t hash = 14695981039346656037u;
  const auto add = [&](std::int64_t value) {
    for (int i = 0; i < 8; ++i)
      hash = (hash ^ (static_cast<std::uint64_t>(value) >> 8 * i & 255)) * std::uint64_t{1099511628211u};
  };
  for (const auto& [span, rank] : partition.runs()) {
    for (const std::int64_t value : {span.begin, span.end, std::int64_t{rank}}) add(value);
  }
  for (const auto& [rank, owner, columns] : needs) {
    for (const std::int64_t value : {std::int64_t{rank}, std::int64_t{owner}, columns.begin, columns.end}) add(value);
  }
  return hash;
}

TEST(Partition, IsTheSameOnEveryMachine) {
  const auto told = [](const Mask& mask, std::int32_t ranks, bool aligned) {
    const Partition made = of(mask, ranks, {.aligned = aligned});
    return hash(made, needs(made, mask));
  };
  EXPECT_EQ(told(long_tail(131072, 1), 8, true), 11831356242793783679u);
  EXPECT_EQ(told(long_tail(131072, 2), 64, true), 10435318769828103612u);
  EXPECT_EQ(told(short_documents(131072, 3), 8, false), 13364245013373061018u);
  EXPECT_EQ(told(masks::sliding_window(100'000, 100'000, 1000), 5, true), 11628293009386723722u);
}

TEST(Partition, DoesNotDependOnThreads) {
  const Mask mask = long_tail(65536, 7);
  EXPECT_EQ(partition(mask, 8, {}, serial_executor()), partition(mask, 8));
}

TEST(Partition, JoinsNeighboursAndDropsEmptyRuns) {
  const Partition made(100, 3, {{{50, 100}, 2}, {{0, 20}, 0}, {{20, 50}, 0}, {{30, 30}, 1}}, 10);
  EXPECT_EQ(made.runs(), (std::vector<RankRun>{{{0, 50}, 0}, {{50, 100}, 2}}));
  EXPECT_EQ(made.length(1), 0);
  EXPECT_TRUE(made.aligned());
  EXPECT_EQ(Partition(100, 2, {{{0, 24}, 0}, {{24, 100}, 1}}, 16).grain(), 8);
}

TEST(Partition, RefusesWhatIsNoPartition) {
  const auto given = [](std::vector<RankRun> runs) { return refusal([&] { Partition(100, 2, runs); }); };
  EXPECT_EQ(given({{{0, 50}, 0}, {{60, 100}, 1}}), "partition: no rank holds token 50; give each token to one rank");
  EXPECT_EQ(given({{{0, 50}, 0}}), "partition: no rank holds token 50; give each token to one rank");
  EXPECT_EQ(given({{{0, 50}, 0}, {{40, 100}, 1}}),
            "partition: token 40 lies in two runs, the second being [40, 100) of rank 1; give each token to one rank");
  EXPECT_EQ(given({{{0, 100}, 2}}), "partition: [0, 100) of rank 2 is of no rank; give ranks 0 to 1");
  EXPECT_EQ(given({{{0, 101}, 1}}),
            "partition: [0, 101) of rank 1 is no run of 100 tokens; give 0 <= begin <= end <= 100");
  const Mask mask = masks::causal(100, 100), other = masks::causal(90, 90);
  EXPECT_EQ(refusal([&] { of(mask, 2, {.head_dim = 0}); }), "partition: head_dim is 0; give at least 1");
  EXPECT_EQ(refusal([&] { of(mask, 2, {.query_heads = 32, .kv_heads = 3}); }),
            "partition: query_heads is 32; give a multiple of kv_heads, which is 3");
  EXPECT_EQ(refusal([&] { of(mask, 0, {}); }), "partition: a level has 0 ranks; give at least one");
  const WeightedMask two[] = {{&mask, 1}, {&other, 1}};
  const std::int32_t ranks[] = {2};
  EXPECT_EQ(refusal([&] { partition(two, ranks); }),
            "partition: one mask has 100 rows and another 90; give masks of one sequence");
  EXPECT_EQ(refusal([&] { partition(std::span(two).first(0), ranks); }),
            "partition: there is no mask; give one at least");
}

}  // namespace
}  // namespace flashmask
