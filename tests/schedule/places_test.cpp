// SPDX-License-Identifier: Apache-2.0
#include "schedule/places.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/explain.h"
#include "kit/corpus.h"
#include "schedule/islands.h"
#include "schedule/random_packs.h"

namespace flashmask {
namespace {

constexpr std::int32_t kUnit = 128;

Places cut(const Mask& mask, std::int64_t step = 1) {
  return places(mask.lowered(), {kUnit, kUnit}, step, serial_executor());
}

/// The token at each place, by the units; −1 for padding.
std::vector<std::int64_t> tokens_of(const UnitLists& lists, std::int64_t batch) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t place = 0; place < lists.most() * lists.size; ++place) {
    const TokenRun one = lists.of(batch).at(place, 1);
    tokens.push_back(one.count == 1 ? one.first : -1);
  }
  return tokens;
}

/// Every token has one place, in ascending order.
void expect_each_token_once(const std::vector<std::int64_t>& tokens, std::int64_t count) {
  std::int64_t next = 0;
  for (const std::int64_t token : tokens) {
    if (token < 0) continue;
    ASSERT_EQ(token, next++);
  }
  EXPECT_EQ(next, count);
}

void expect_same_visible(const Mask& mask, const Places& moved) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    const std::vector<std::int64_t> rows = tokens_of(moved.rows, batch), columns = tokens_of(moved.columns, batch);
    expect_each_token_once(rows, shape.rows);
    expect_each_token_once(columns, shape.columns);
    for (std::int64_t head = 0; head < shape.heads; ++head)
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (std::size_t c = 0; c < columns.size(); ++c) {
          if (columns[c] >= 0 && rows[r] < 0) continue;  // padding rows may see anything
          const bool expected = columns[c] >= 0 && mask.lowered().visible(batch, head, rows[r], columns[c]);
          ASSERT_EQ(moved.mask.visible(batch, head, static_cast<std::int64_t>(r), static_cast<std::int64_t>(c)),
                    expected)
              << rows[r] << ", " << columns[c];
        }
  }
}

TEST(Places, HoldEveryVisiblePairOnce) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (const corpus::Size size : {corpus::Size{150, 150, 2}, corpus::Size{90, 170, 1}}) {
      if (!entry.accepts(size)) continue;
      SCOPED_TRACE(entry.name);
      const Mask mask = entry.build(size);
      expect_same_visible(mask, cut(mask));
    }
  }
}

TEST(Places, OfEntriesThatAreCutInOtherPlacesStayApart) {
  const Mask masks[] = {masks::document({100, 100, 100}, 300), masks::document({300}, 300),
                        masks::causal_document({20, 260, 20}, 300)};
  const Mask stacked = stack_batch(masks);
  const Places moved = cut(stacked);
  expect_same_visible(stacked, moved);
  EXPECT_EQ(moved.rows.of(0).count, 3);
  EXPECT_EQ(moved.rows.of(1).count, 3);
  EXPECT_EQ(moved.rows.of(2).count, 5);
}

TEST(Places, HaveAnOrderAndUnitsOfOneLengthForEveryEntry) {
  const Mask masks[] = {masks::document({100, 130, 70}, 300), masks::document({300}, 300)};
  const Places moved = places(stack_batch(masks).lowered(), {64, 128}, 1, serial_executor());
  EXPECT_EQ(moved.rows.padded(), (std::vector<Unit>{{0, 64},
                                                    {64, 100},
                                                    {100, 164},
                                                    {164, 228},
                                                    {228, 230},
                                                    {230, 294},
                                                    {294, 300},
                                                    {0, 64},
                                                    {64, 128},
                                                    {128, 192},
                                                    {192, 256},
                                                    {256, 300},
                                                    {300, 300},
                                                    {300, 300}}));
  EXPECT_EQ(
      moved.columns.padded(),
      (std::vector<Unit>{{0, 100}, {100, 228}, {228, 230}, {230, 300}, {0, 128}, {128, 256}, {256, 300}, {300, 300}}));
  for (const UnitLists* lists : {&moved.rows, &moved.columns}) {
    const std::vector<std::int64_t> order = lists->order();
    const auto length = static_cast<std::size_t>(lists->most() * lists->size);
    ASSERT_EQ(order.size(), 2 * length);
    for (std::int64_t batch = 0; batch < 2; ++batch)
      EXPECT_EQ(std::vector(order.begin() + batch * std::ssize(order) / 2,
                            order.begin() + (batch + 1) * std::ssize(order) / 2),
                tokens_of(*lists, batch));
  }
}

/// Whether no row sees across: neither a row above `row` a column from `column` on, nor the other way about.
bool is_free(const Mask& mask, std::int64_t row, std::int64_t column) {
  for (std::int64_t i = 0; i < mask.shape().rows; ++i)
    for (std::int64_t j = 0; j < mask.shape().columns; ++j)
      if ((i < row) != (j < column) && mask.lowered().visible(0, 0, i, j)) return false;
  return true;
}

bool is_free_for_some_row(const Mask& mask, std::int64_t column) {
  for (std::int64_t row = 0; row <= mask.shape().rows; ++row)
    if (is_free(mask, row, column)) return true;
  return false;
}

TEST(Islands, EndAtEveryFreeCutButThoseBetweenSingleTokens) {
  RandomPacks packs(3);
  for (int round = 0; round < 12; ++round) {
    Pack pack;
    for (std::int64_t length = 1 + packs.below(9); pack.rows < 40; length = 1 + packs.below(9))
      pack.add(packs.document(length, 1 + packs.below(9), true));
    const Mask mask = pack.whole();
    std::int64_t row = 0, column = 0;
    for (const Island& island : islands(mask.lowered(), 0, serial_executor())) {
      EXPECT_EQ(island.rows.begin, row);
      EXPECT_EQ(island.columns.begin, column);
      EXPECT_TRUE(is_free(mask, row, column));
      for (std::int64_t c = column + 1; c < island.columns.end && !island.single; ++c)
        EXPECT_FALSE(is_free_for_some_row(mask, c)) << c;
      row = island.rows.end;
      column = island.columns.end;
      if (!island.single) continue;
      for (std::int64_t r = island.rows.begin; r < row; ++r) {
        std::int64_t seen = 0;
        for (std::int64_t c = 0; c < pack.columns; ++c) seen += mask.lowered().visible(0, 0, r, c) ? 1 : 0;
        EXPECT_LE(seen, 1);
      }
    }
    EXPECT_EQ(row, pack.rows);
    EXPECT_EQ(column, pack.columns);
  }
}

/// The units of tokens [begin, end), counted from `begin`; units that reach across an end are not among them.
std::vector<Unit> units_between(const PlacedTokens& all, std::int64_t begin, std::int64_t end) {
  std::vector<Unit> units;
  for (std::int64_t i = 0; i < all.count; ++i) {
    const auto [first, last] = all.units[i];
    if (first >= begin && last <= end)
      units.push_back({static_cast<std::int32_t>(first - begin), static_cast<std::int32_t>(last - begin)});
  }
  return units;
}

bool has_sums(const Mask& mask) {
  const std::vector<Island> all = islands(mask.lowered(), 0, serial_executor());
  return all.size() == 1 && !all.front().single;
}

TEST(Places, OfASegmentAreThoseThatItHasAlone) {
  RandomPacks packs(5);
  int compared = 0;
  for (int round = 0; round < 6; ++round) {
    const Pack pack = packs.pack(1500, round % 2 == 0, true);
    const Places whole = cut(pack.whole());
    for (const Pack::Document& document : pack.documents) {
      if (!has_sums(document.mask)) continue;
      const Places alone = cut(document.mask);
      const auto of = [](const UnitLists& lists, std::int64_t begin, std::int64_t count) {
        return units_between(lists.of(0), begin, begin + count);
      };
      EXPECT_EQ(of(whole.rows, document.row, document.rows()), of(alone.rows, 0, document.rows()));
      EXPECT_EQ(of(whole.columns, document.column, document.columns()), of(alone.columns, 0, document.columns()));
      ++compared;
    }
  }
  EXPECT_GT(compared, 30);
}

TEST(Places, PadBySegmentsAndNoMore) {
  RandomPacks packs(8);
  for (int round = 0; round < 8; ++round) {
    const Pack pack = packs.pack(2000, true, false);
    const Mask mask = pack.whole();
    const std::int64_t count = std::ssize(islands(mask.lowered(), 0, serial_executor()));
    const std::int64_t grid = (pack.rows + kUnit - 1) / kUnit;
    EXPECT_GE(cut(mask).rows.most(), grid);
    EXPECT_LE(cut(mask).rows.most(), grid + count - 1);
  }
}

TEST(Places, OfSingleTokensShareUnits) {
  Pack pack;
  pack.add(masks::causal(130, 130));
  pack.pad(300);
  pack.add(masks::causal(50, 50));
  EXPECT_EQ(cut(pack.whole()).rows.units,
            (std::vector<Unit>{{0, 128}, {128, 130}, {130, 258}, {258, 386}, {386, 430}, {430, 480}}));
}

TEST(Places, BeginAtMultiplesOfTheStep) {
  Pack pack;
  pack.add(masks::causal(30, 30));
  pack.pad(10);
  pack.add(masks::causal(24, 24));
  EXPECT_EQ(cut(pack.whole(), 8).rows.units, (std::vector<Unit>{{0, 32}, {32, 40}, {40, 64}}));
  const Mask odd = masks::causal_document({30, 34}, 64);
  try {
    cut(odd, 8);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("begins at row 30; let all begin at multiples of 8"), std::string::npos)
        << error.what();
  }
}

TEST(Explain, CountsTilesThatBeginAtCuts) {
  const Mask mask = masks::causal_document({100, 100}, 200);
  // On the grid the second document touches both row tiles and both column tiles.
  EXPECT_EQ(explain(mask, {128, 128}).tiles, (TileCounts{1, 3, 0}));
  const Explanation cut = explain(mask, {128, 128}, true);
  EXPECT_EQ(cut.tiles, (TileCounts{2, 2, 0}));
  EXPECT_DOUBLE_EQ(cut.waste, 2 * 100 * 100.0 / (100 * 101));
  EXPECT_NE(to_string(cut).find("2 skip, 2 partial, 0 full, beginning at every free cut"), std::string::npos);
  // A document's last 36 rows all see its first 64 columns.
  EXPECT_EQ(explain(mask, {64, 64}, true).tiles, (TileCounts{10, 4, 2}));
  // A tile of padding alone is no tile.
  EXPECT_EQ(explain(masks::document({60, 60}, 120), {64, 64}, true).tiles, (TileCounts{2, 2, 0}));
  EXPECT_THROW(explain(mask, {100, 100}, true), Error);
}

}  // namespace
}  // namespace flashmask
