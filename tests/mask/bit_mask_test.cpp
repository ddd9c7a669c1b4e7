// SPDX-License-Identifier: Apache-2.0
#include "flashmask/bit_mask.h"

#include <algorithm>
#include <random>

#include "flashmask/explain.h"
#include "kit/corpus.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::refusal;

constexpr MaskShape kTwoCells{.batch = 1, .heads = 1, .rows = 64, .columns = 100};

std::vector<std::uint64_t> diagonal_words() {
  std::vector<std::uint64_t> words;
  for (int r = 0; r < 64; ++r) words.push_back(std::uint64_t{1} << r);
  return words;
}

TEST(BitMask, ReadsRunsAndWords) {
  const BitMask mask(kTwoCells, {{0, 2}, {{0, 1, TileKind::partial}, {1, 2, TileKind::full}}}, diagonal_words());
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t column = 0; column < 100; ++column) {
      ASSERT_EQ(mask.visible(0, 0, row, column), column >= 64 || row == column) << row << " " << column;
    }
  }
  EXPECT_EQ(mask.partial_cells(), 1);
}

TEST(BitMask, RefusesRunsThatContradictTheShapeOrTheWords) {
  const auto build = [](RunLists cells, std::vector<std::uint64_t> words) {
    return refusal([&] { BitMask(kTwoCells, std::move(cells), std::move(words)); });
  };
  EXPECT_EQ(
      build({{0, 0, 0}, {}}, {}),
      "BitMask: cells.offsets do not divide 0 runs into 1 lists, one a row of cells; give ascending offsets from 0 "
      "to the number of runs");
  EXPECT_EQ(build({{0, 1}, {{1, 3, TileKind::full}}}, {}),
            "BitMask: list 0 has a run of cells from 1 to 3; give ascending runs of full or partial cells within 2");
  EXPECT_EQ(build({{0, 2}, {{1, 2, TileKind::full}, {0, 1, TileKind::full}}}, {}),
            "BitMask: list 0 has a run of cells from 0 to 1; give ascending runs of full or partial cells within 2");
  EXPECT_EQ(build({{0, 1}, {{0, 1, TileKind::partial}}}, {}),
            "BitMask: words holds 0 words but the runs have 1 partial cells; give 64 words a cell");
}

TEST(BitMask, TakesNoBitsForWholeCells) {
  std::vector<std::uint8_t> scores(128 * 192, 1);
  for (std::size_t i = 0; i < 64 * 192; ++i) scores[i] = i % 192 < 64 ? 0 : 1;  // the first cell is hidden
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 128, .columns = 192};
  const LoweredMask bits = lower(from_dense(shape, scores), MaskForm::bits);
  EXPECT_EQ(bits.bits().partial_cells(), 0);
  EXPECT_LT(bits.memory_bytes(), 100U);
}

TEST(BitMask, TakesAnEighthOfAByteAScoreAtWorst) {
  std::mt19937_64 random(1);
  std::vector<std::uint8_t> scores(512 * 512);
  for (std::uint8_t& score : scores) score = random() % 2;
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 512, .columns = 512};
  const Mask mask = from_dense(shape, scores);
  EXPECT_EQ(mask.lowered().bits().partial_cells(), 64);
  EXPECT_NEAR(static_cast<double>(mask.lowered().memory_bytes()), 512 * 512 / 8.0, 1000);
  EXPECT_NE(to_string(explain(mask)).find("32.0 KiB of bits in 64 partial cells of 64 x 64"), std::string::npos)
      << to_string(explain(mask));
}

/// Every way to say the same mask gives the same scores, and the same bits when they are asked for.
TEST(Routes, ToOneMaskAreEqual) {
  for (const corpus::Case& one : corpus::cases(1)) {
    const Mask mask = one.mask();
    const MaskShape& shape = mask.shape();
    const std::vector<std::uint8_t> dense = expand(mask);
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(shape.rows * ((shape.columns + 7) / 8)));
    std::vector<VisiblePair> pairs;
    std::vector<std::int64_t> offsets = {0}, columns;
    for (std::int64_t i = 0; i < shape.rows; ++i) {
      for (std::int64_t j = 0; j < shape.columns; ++j) {
        if (dense[static_cast<std::size_t>(i * shape.columns + j)] == 0) continue;
        packed[static_cast<std::size_t>(i * ((shape.columns + 7) / 8) + j / 8)] |=
            static_cast<std::uint8_t>(1 << j % 8);
        pairs.push_back({i, j});
        columns.push_back(j);
      }
      if (shape.columns % 8 != 0) {  // what lies past the last column does not count
        packed[static_cast<std::size_t>((i + 1) * ((shape.columns + 7) / 8) - 1)] |=
            static_cast<std::uint8_t>(0xff << shape.columns % 8);
      }
      offsets.push_back(std::ssize(columns));
    }
    std::ranges::shuffle(pairs, std::mt19937(1));  // in no order
    const auto at = [&](auto, auto, auto i, auto j) {
      return dense[static_cast<std::size_t>(i * shape.columns + j)] != 0;
    };
    const BitMask bits = lower(mask, MaskForm::bits).bits();
    for (const Mask& other :
         {from_dense(shape, dense), from_packed(shape, packed), from_predicate(shape, at),
          from_pairs(shape.rows, shape.columns, pairs), from_csr(shape.rows, shape.columns, offsets, columns)}) {
      ASSERT_EQ(expand(other), dense) << other.description() << " of " << one.name();
      ASSERT_EQ(lower(other, MaskForm::bits).bits(), bits) << other.description() << " of " << one.name();
    }
  }
}

}  // namespace
}  // namespace flashmask
