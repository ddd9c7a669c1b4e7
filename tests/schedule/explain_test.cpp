// SPDX-License-Identifier: Apache-2.0
#include "flashmask/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/corpus.h"

namespace flashmask {
namespace {

TEST(Explain, CausalByHand) {
  const Explanation e = explain(masks::causal(100, 100), {64, 64});
  EXPECT_EQ(e.visible_pairs, 100 * 101 / 2);
  EXPECT_DOUBLE_EQ(e.density, 0.505);
  EXPECT_EQ(e.tiles, (TileCounts{1, 2, 1}));
  EXPECT_DOUBLE_EQ(e.waste, (64 * 64 + 36 * 64 + 36 * 36) / 5050.0);
  EXPECT_EQ(e.empty_rows, 0);
  EXPECT_EQ(e.mask_bytes, 100 * 16u);
  EXPECT_EQ(e.dense_bytes, 10'000u);
  EXPECT_EQ(e.form, MaskForm::intervals);
  EXPECT_EQ(e.description, masks::causal(100, 100).description());
}

TEST(Explain, CountsVisiblePairsAndEmptyRowsOverTheCorpus) {
  for (const corpus::Entry& entry : corpus::entries()) {
    for (corpus::Size size : corpus::awkward_sizes()) {
      if (!entry.accepts(size)) continue;
      size.heads = 2;
      const Mask mask = entry.build(size);
      const std::vector<std::uint8_t> dense = expand(mask);
      std::int64_t empty = 0;
      for (auto row = dense.begin(); row != dense.end(); row += size.columns) {
        empty += std::count(row, row + size.columns, 1) == 0;
      }
      const Explanation e = explain(mask);
      EXPECT_EQ(e.visible_pairs, std::accumulate(dense.begin(), dense.end(), std::int64_t{0})) << entry.name;
      EXPECT_EQ(e.empty_rows, empty) << entry.name;
      EXPECT_EQ(e.dense_bytes, dense.size()) << entry.name;
    }
  }
}

TEST(Explain, NamesTheFirstEightEmptyRowsOfTheFirstHead) {
  const Explanation few = explain(masks::causal(5, 3));
  EXPECT_EQ(few.empty_rows, 2);
  EXPECT_EQ(few.first_empty_rows, (std::vector<std::int64_t>{0, 1}));
  const std::vector<Mask> heads = {masks::causal(20, 3), masks::full(20, 3)};
  const Explanation many = explain(stack_heads(heads));
  EXPECT_EQ(many.empty_rows, 17);
  EXPECT_EQ(many.first_empty_rows, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Explain, AMaskThatHidesEverythingHasNoWaste) {
  const auto hidden = from_predicate({1, 1, 4, 4}, [](auto, auto, auto, auto) { return false; });
  const Explanation e = explain(hidden);
  EXPECT_EQ(e.visible_pairs, 0);
  EXPECT_EQ(e.density, 0);
  EXPECT_EQ(e.waste, 0);
  EXPECT_EQ(e.empty_rows, 4);
}

TEST(Explain, AMaskWithoutScoresHasNoDensity) {
  EXPECT_EQ(explain(masks::full(0, 0)).density, 0);
  EXPECT_EQ(explain(masks::full(3, 0)).empty_rows, 3);
}

TEST(Explain, CountsAMillionTokens) {
  constexpr std::int64_t tokens = 1'048'576;
  const Explanation e = explain(masks::causal(tokens, tokens), {128, 128});
  EXPECT_EQ(e.visible_pairs, tokens * (tokens + 1) / 2);
  EXPECT_EQ(e.dense_bytes, std::size_t{1} << 40);
}

TEST(Explain, TableSaysTheNumbersAPersonWants) {
  const std::string table = to_string(explain(masks::causal(2048, 2048), {64, 128}));
  for (const char* part : {"2,048 rows, 2,048 columns", "intervals: ", "2,098,176 of 4,194,304 (50.02 %)",
                           "tiles 64 x 128", "240 skip, 32 partial, 240 full", "32.0 KiB", "4.0 MiB"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " is missing in\n" << table;
  }
}

TEST(Explain, TableGivesBytesBelowAKibibyteAsTheyAre) {
  EXPECT_NE(to_string(explain(masks::full(1, 63))).find("  1,008 bytes\n"), std::string::npos);
  EXPECT_NE(to_string(explain(masks::full(1, 64))).find("  1.0 KiB\n"), std::string::npos);
}

TEST(Explain, TableListsEmptyRows) {
  EXPECT_NE(to_string(explain(masks::causal(5, 3))).find("  2: 0, 1\n"), std::string::npos);
  EXPECT_NE(to_string(explain(masks::causal(20, 3))).find("  17: 0, 1, 2, 3, 4, 5, 6, 7, …\n"), std::string::npos);
}

TEST(Explain, TableAlignsItsValues) {
  std::istringstream table(to_string(explain(masks::causal(64, 64))));
  for (std::string line; std::getline(table, line);) {
    ASSERT_GT(line.size(), 19u);
    EXPECT_EQ(line[18], ' ') << line;  // "dense mask memory" and two blanks
    EXPECT_NE(line[19], ' ') << line;
  }
}

TEST(Explain, RefusesATileWithoutScores) { EXPECT_THROW(explain(masks::full(8, 8), {0, 8}), Error); }

}  // namespace
}  // namespace flashmask
