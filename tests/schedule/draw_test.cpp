// SPDX-License-Identifier: Apache-2.0
#include "flashmask/draw.h"

#include <gtest/gtest.h>

#include <string>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/corpus.h"
#include "schedule/tile_kinds.h"

namespace flashmask {
namespace {

DrawOptions of_width(std::int64_t width) {
  DrawOptions options;
  options.width = width;
  return options;
}

/// Without ANSI colours, which run from the escape to an 'm'.
std::string plain(const std::string& coloured) {
  std::string text;
  bool escaped = false;
  for (const char c : coloured) {
    escaped |= c == '\x1b';
    if (!escaped) text += c;
    escaped &= c != 'm';
  }
  return text;
}

TEST(Draw, SmallMasksShowEveryScore) {
  EXPECT_EQ(draw(masks::causal(3, 3)),
            "#..\n"
            "##.\n"
            "###\n");
  EXPECT_EQ(draw(masks::sliding_window(4, 4, 2)),
            "#...\n"
            "##..\n"
            ".##.\n"
            "..##\n");
}

TEST(Draw, RowsAndColumnsMayDiffer) {
  EXPECT_EQ(draw(masks::causal(2, 4)),
            "###.\n"
            "####\n");
}

TEST(Draw, LargeMasksShowBlocks) {
  EXPECT_EQ(draw(masks::causal(12, 12), of_width(3)),
            "+..\n"
            "#+.\n"
            "##+\n");
}

TEST(Draw, RowsAndColumnsHaveTheirOwnBlocks) {
  EXPECT_EQ(draw(masks::causal(12, 2), of_width(4)), "..\n..\n..\n++\n");
  EXPECT_EQ(draw(masks::causal(2, 12), of_width(4)), "###+\n####\n");
}

TEST(Draw, BlocksEqualBruteForceOverTheCorpus) {
  for (const corpus::Entry& entry : corpus::entries()) {
    const corpus::Size size{239, 239};
    const Mask mask = entry.build(size);
    TileKinds kinds = brute_force_kinds({mask.shape(), expand(mask)}, 0, 0, {16, 16});
    std::string expected;
    for (std::int64_t i = 0; i < kinds.rows; ++i) {
      for (std::int64_t j = 0; j < kinds.columns; ++j) {
        const TileKind kind = kinds.at(i, j);
        expected += kind == TileKind::full ? '#' : kind == TileKind::partial ? '+' : '.';
      }
      expected += '\n';
    }
    EXPECT_EQ(draw(mask, of_width(15)), expected) << entry.name;
  }
}

TEST(Draw, DrawsAMillionTokens) {
  constexpr std::int64_t tokens = 1'048'576;
  EXPECT_EQ(draw(masks::sliding_window(tokens, tokens, tokens / 2), of_width(4)),
            "+...\n"
            "#+..\n"
            "+#+.\n"
            ".+#+\n");
}

TEST(Draw, DrawsMasksThatNeedMoreThanTwoRanges) {
  const auto dilated = from_predicate({1, 1, 6, 2}, [](auto, auto, auto row, auto) { return row % 2 == 1; });
  EXPECT_EQ(draw(dilated), "..\n##\n..\n##\n..\n##\n");
}

TEST(Draw, ShowsTheBatchEntryAndHeadAskedFor) {
  const auto mask =
      from_predicate({2, 2, 1, 4}, [](auto batch, auto head, auto, auto column) { return column == 2 * batch + head; });
  DrawOptions options;
  options.batch = 1;
  options.head = 0;
  EXPECT_EQ(draw(mask, options), "..#.\n");
}

TEST(Draw, ColourOnlyAddsEscapes) {
  DrawOptions options = of_width(5);
  options.colour = true;
  const std::string coloured = draw(masks::causal(20, 20), options);
  EXPECT_NE(coloured.find("\x1b[32m"), std::string::npos);
  EXPECT_EQ(plain(coloured), draw(masks::causal(20, 20), of_width(5)));
}

TEST(Draw, ColourEndsWithItsLine) {
  DrawOptions options;
  options.colour = true;
  EXPECT_EQ(draw(masks::full(1, 2), options), "\x1b[32m##\x1b[0m\n");
}

TEST(Draw, MasksWithoutScoresAreBlank) {
  EXPECT_EQ(draw(masks::full(0, 3)), "");
  EXPECT_EQ(draw(masks::full(2, 0)), "\n\n");
}

TEST(Draw, RefusesWhatIsNotThere) {
  EXPECT_THROW(draw(masks::full(2, 2), of_width(0)), Error);
  DrawOptions options;
  options.head = 1;
  EXPECT_THROW(draw(masks::full(2, 2), options), Error);
  options = {};
  options.batch = -1;
  EXPECT_THROW(draw(masks::full(2, 2), options), Error);
}

}  // namespace
}  // namespace flashmask
