// SPDX-License-Identifier: Apache-2.0
#include "flashmask/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/corpus.h"
#include "schedule/random_mask.h"
#include "schedule/tile_kinds.h"

namespace flashmask {
namespace {

constexpr std::array<TileShape, 4> kTiles = {{{64, 64}, {128, 128}, {64, 128}, {16, 32}}};

/// Five workers, each body on a thread of its own.
class FiveWorkers : public Executor {
 public:
  int workers() const override { return 5; }
  void run(int count, const std::function<void(int)>& body) override {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }
};

/// Ascending, disjoint, no run empty or of skip, and no two that could be one.
void expect_run_list(std::span<const Run> runs, std::int64_t tiles) {
  std::int32_t end = 0;
  const Run* before = nullptr;
  for (const Run& run : runs) {
    EXPECT_GE(run.begin, end);
    EXPECT_LT(run.begin, run.end);
    EXPECT_NE(run.kind, TileKind::skip);
    EXPECT_FALSE(before && before->end == run.begin && before->kind == run.kind) << "two runs could be one";
    end = run.end;
    before = &run;
  }
  EXPECT_LE(end, tiles);
}

TileKinds kinds_of_rows(const TileSchedule& schedule, std::int64_t batch, std::int64_t head) {
  TileKinds kinds(schedule.row_tiles(), schedule.column_tiles());
  for (std::int64_t i = 0; i < kinds.rows; ++i) {
    for (const Run& run : schedule.row_runs(batch, head, i)) {
      for (std::int64_t j = run.begin; j < run.end; ++j) kinds.at(i, j) = run.kind;
    }
  }
  return kinds;
}

TileKinds kinds_of_columns(const TileSchedule& schedule, std::int64_t batch, std::int64_t head) {
  TileKinds kinds(schedule.row_tiles(), schedule.column_tiles());
  for (std::int64_t j = 0; j < kinds.columns; ++j) {
    for (const Run& run : schedule.column_runs(batch, head, j)) {
      for (std::int64_t i = run.begin; i < run.end; ++i) kinds.at(i, j) = run.kind;
    }
  }
  return kinds;
}

void expect_run_lists(const TileSchedule& schedule) {
  const MaskShape& shape = schedule.mask_shape();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t i = 0; i < schedule.row_tiles(); ++i) {
        expect_run_list(schedule.row_runs(b, h, i), schedule.column_tiles());
      }
      for (std::int64_t j = 0; j < schedule.column_tiles(); ++j) {
        expect_run_list(schedule.column_runs(b, h, j), schedule.row_tiles());
      }
    }
  }
}

void expect_exact(const LoweredMask& lowered, const DenseMask& dense, TileShape tile) {
  const TileSchedule built = schedule(lowered, tile, Visit::active, serial_executor());
  expect_run_lists(built);
  TileCounts counts;
  for (std::int64_t b = 0; b < dense.shape.batch; ++b) {
    for (std::int64_t h = 0; h < dense.shape.heads; ++h) {
      const TileKinds expected = brute_force_kinds(dense, b, h, tile);
      ASSERT_EQ(kinds_of_rows(built, b, h).kinds, expected.kinds) << "batch " << b << " head " << h;
      ASSERT_EQ(kinds_of_columns(built, b, h).kinds, expected.kinds) << "batch " << b << " head " << h;
      counts.skip += std::count(expected.kinds.begin(), expected.kinds.end(), TileKind::skip);
      counts.full += std::count(expected.kinds.begin(), expected.kinds.end(), TileKind::full);
      counts.partial += std::count(expected.kinds.begin(), expected.kinds.end(), TileKind::partial);
    }
  }
  EXPECT_EQ(built.counts(), counts);
}

TEST(Schedule, EqualsBruteForceOverTheCorpus) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (corpus::Size size : corpus::awkward_sizes()) {
      if (!entry.accepts(size)) continue;
      size.heads = 2;
      const Mask mask = entry.build(size);
      for (const TileShape tile : kTiles) {
        SCOPED_TRACE(entry.name + " " + std::to_string(size.rows) + " x " + std::to_string(size.columns) + " in " +
                     std::to_string(tile.rows) + " x " + std::to_string(tile.columns));
        expect_exact(lower(mask), {mask.shape(), expand(mask)}, tile);
      }
    }
  }
}

TEST(Schedule, EqualsBruteForceOnRandomMasks) {
  constexpr std::array<TileShape, 8> tiles = {
      {{64, 64}, {128, 128}, {64, 128}, {16, 32}, {7, 5}, {1, 1}, {1, 9}, {33, 1}}};
  RandomMasks masks(3);
  for (int round = 0; round < 10000; ++round) {
    const TileShape tile = tiles[static_cast<std::size_t>(masks.below(std::ssize(tiles)))];
    const std::int64_t longest = masks.below(8) == 0 ? 300 : 60;
    const MaskShape shape{1 + masks.below(2), 1 + masks.below(3), 1 + masks.below(longest), 1 + masks.below(longest)};
    const RandomMask mask = masks.next(shape, tile);
    SCOPED_TRACE("round " + std::to_string(round));
    expect_exact(mask.lowered, mask.dense, tile);
    expect_exact(lower(Mask(mask.lowered, "random"), MaskForm::bits), mask.dense, tile);
    if (HasFailure()) return;
  }
}

TEST(Schedule, EqualsBruteForceOnRandomBits) {
  constexpr std::array<TileShape, 8> tiles = {
      {{64, 64}, {128, 128}, {64, 128}, {16, 32}, {7, 5}, {1, 1}, {100, 9}, {192, 256}}};
  RandomMasks masks(9);
  for (int round = 0; round < 1000; ++round) {
    const TileShape tile = tiles[static_cast<std::size_t>(masks.below(std::ssize(tiles)))];
    const MaskShape shape{1 + masks.below(2), 1 + masks.below(2), 1 + masks.below(300), 1 + masks.below(300)};
    const DenseMask dense = masks.rectangles(shape);
    SCOPED_TRACE("round " + std::to_string(round));
    expect_exact(lower(from_dense(shape, dense.visible), MaskForm::bits), dense, tile);
    if (HasFailure()) return;
  }
}

TEST(Schedule, EqualsBruteForceWithMoreRowTilesThanAWordOfWordsHolds) {
  RandomMasks masks(4);
  for (int round = 0; round < 4; ++round) {
    const RandomMask mask = masks.next({1, 1, 300'000, 3}, {1, 2});
    expect_exact(mask.lowered, mask.dense, {1, 2});
  }
}

TEST(Schedule, DoesNotDependOnTheNumberOfWorkers) {
  FiveWorkers five;
  RandomMasks masks(5);
  for (const MaskShape& shape : {MaskShape{2, 3, 150, 700}, MaskShape{1, 1, 700, 3000}, MaskShape{9, 1, 20, 20}}) {
    const RandomMask mask = masks.next(shape, {16, 8});
    for (const Visit visit : {Visit::active, Visit::all}) {
      EXPECT_EQ(schedule(mask.lowered, {16, 8}, visit, five),
                schedule(mask.lowered, {16, 8}, visit, serial_executor()));
    }
  }
}

TEST(Schedule, VisitAllIsOnePartialRunOverEveryTile) {
  const TileSchedule all = schedule(lower(masks::causal(100, 200)), {64, 64}, Visit::all, serial_executor());
  for (std::int64_t i = 0; i < 2; ++i) {
    ASSERT_EQ(all.row_runs(0, 0, i).size(), 1u);
    EXPECT_EQ(all.row_runs(0, 0, i)[0], (flashmask::Run{0, 4, TileKind::partial}));
  }
  for (std::int64_t j = 0; j < 4; ++j) {
    ASSERT_EQ(all.column_runs(0, 0, j).size(), 1u);
    EXPECT_EQ(all.column_runs(0, 0, j)[0], (flashmask::Run{0, 2, TileKind::partial}));
  }
  EXPECT_EQ(all.counts(), (TileCounts{0, 8, 0}));
}

TEST(Schedule, MasksWithoutRowsOrColumnsHaveEmptyLists) {
  for (const Visit visit : {Visit::active, Visit::all}) {
    const TileSchedule no_rows = schedule(lower(masks::full(0, 100)), {64, 64}, visit, serial_executor());
    EXPECT_EQ(no_rows.row_tiles(), 0);
    EXPECT_TRUE(no_rows.column_runs(0, 0, 1).empty());
    const TileSchedule no_columns = schedule(lower(masks::full(100, 0)), {64, 64}, visit, serial_executor());
    EXPECT_EQ(no_columns.column_tiles(), 0);
    EXPECT_TRUE(no_columns.row_runs(0, 0, 1).empty());
    EXPECT_EQ(no_columns.counts(), TileCounts{});
  }
}

TEST(Schedule, AMaskThatHidesEverythingHasEmptyLists) {
  auto hidden = std::make_shared<IntervalMask>(MaskShape{1, 1, 100, 100});
  for (std::size_t j = 0; j < 100; ++j) hidden->set(j, {0, 100}, {});
  const TileSchedule built = schedule({hidden, "test"}, {64, 64}, Visit::active, serial_executor());
  EXPECT_TRUE(built.row_runs(0, 0, 1).empty());
  EXPECT_TRUE(built.column_runs(0, 0, 1).empty());
  EXPECT_EQ(built.counts(), (TileCounts{4, 0, 0}));
}

TEST(Schedule, AMillionTokensOfAStructuredMaskTakeLessThanTwoMegabytes) {
  constexpr std::int64_t tokens = 1'048'576;
  const std::vector<std::int64_t> documents(256, 4096);
  for (const Mask& mask : {masks::causal(tokens, tokens), masks::causal_document(documents, tokens),
                           masks::sliding_window(tokens, tokens, 1024)}) {
    const TileSchedule built = schedule(lower(mask), {128, 128});
    EXPECT_LT(built.memory_bytes(), 2u << 20) << mask.description();
  }
}

TEST(Schedule, KeepsNoMemoryItDoesNotUse) {
  FiveWorkers five;
  RandomMasks masks(6);
  const TileSchedule built = schedule(masks.next({2, 3, 300, 900}, {16, 8}).lowered, {16, 8}, Visit::active, five);
  const std::size_t runs = built.rows().runs.size() + built.columns().runs.size();
  const std::size_t offsets = built.rows().offsets.size() + built.columns().offsets.size();
  EXPECT_EQ(built.memory_bytes(), runs * sizeof(flashmask::Run) + offsets * sizeof(std::int64_t));
}

TEST(Schedule, CountsOfAMillionCausalTokens) {
  const TileSchedule built = schedule(lower(masks::causal(1'048'576, 1'048'576)), {128, 128});
  constexpr std::int64_t tiles = 8192;
  EXPECT_EQ(built.counts(), (TileCounts{tiles * (tiles - 1) / 2, tiles, tiles * (tiles - 1) / 2}));
}

TEST(Schedule, RefusesATileWithoutScores) {
  EXPECT_THROW(schedule(lower(masks::full(8, 8)), {0, 64}), Error);
  EXPECT_THROW(schedule(lower(masks::full(8, 8)), {64, -1}), Error);
}

TEST(TileSchedule, RefusesListsOfAnotherGrid) {
  const RunLists one_list{{0, 0}, {}};
  const RunLists two_lists{{0, 0, 0}, {}};
  EXPECT_NO_THROW(TileSchedule({1, 1, 8, 16}, {8, 8}, one_list, two_lists));
  EXPECT_THROW(TileSchedule({1, 1, 8, 16}, {8, 8}, two_lists, two_lists), Error);
  EXPECT_THROW(TileSchedule({1, 1, 8, 16}, {8, 8}, one_list, one_list), Error);
}

}  // namespace
}  // namespace flashmask
