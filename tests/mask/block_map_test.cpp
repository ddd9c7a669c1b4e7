// SPDX-License-Identifier: Apache-2.0
#include "flashmask/block_map.h"

#include "flashmask/builders.h"
#include "flashmask/schedule.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

std::vector<std::uint8_t> random_blocks(std::size_t count) {
  std::mt19937_64 random(3);
  std::vector<std::uint8_t> keep(count);
  for (std::uint8_t& value : keep) value = random() % 2;
  return keep;
}

class BlockMaps : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Block, BlockMaps, ::testing::Values(16, 48, 64, 128, 192, 256));

TEST_P(BlockMaps, KeepWholeBlocksOfEitherForm) {
  const std::int64_t rows = 300, columns = 500, block = GetParam();
  const MaskShape shape{.batch = 2, .heads = 2, .rows = rows, .columns = columns};
  const std::int64_t block_rows = (rows + block - 1) / block, block_columns = (columns + block - 1) / block;
  const auto keep = random_blocks(static_cast<std::size_t>(4 * block_rows * block_columns));
  const BlockMap map(shape, block, keep);
  const Mask causal = masks::causal(rows, columns);
  const Mask checkered = from_predicate({.batch = 1, .heads = 1, .rows = rows, .columns = columns},
                                        [](auto, auto, auto i, auto j) { return (i + j) % 3 != 0; });
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t h = 0; h < 2; ++h) {
      const auto kept = [&](std::int64_t i, std::int64_t j) {
        const std::int64_t row = (n * 2 + h) * block_rows + i / block;
        return keep[static_cast<std::size_t>(row * block_columns + j / block)] != 0;
      };
      expect_visible(from_block_map(map), kept, n, h);
      expect_visible(
          causal & map, [&](auto i, auto j) { return kept(i, j) && j <= i + columns - rows; }, n, h);
      expect_visible(
          checkered & map, [&](auto i, auto j) { return kept(i, j) && (i + j) % 3 != 0; }, n, h);
      expect_visible((causal & map) | checkered,
                     [&](auto i, auto j) { return (kept(i, j) && j <= i + columns - rows) || (i + j) % 3 != 0; }, n, h);
    }
  }
}

TEST_P(BlockMaps, AreLeftOutOfTheSchedule) {
  const std::int64_t block = GetParam(), blocks = 4;
  const MaskShape shape{.batch = 1, .heads = 1, .rows = blocks * block, .columns = blocks * block};
  std::vector<std::uint8_t> keep(16, 0);
  keep[1] = keep[6] = keep[15] = 1;
  const LoweredMask lowered = lower(from_block_map(BlockMap(shape, block, keep)));
  const TileCounts counts =
      schedule(lowered, {static_cast<std::int32_t>(block), static_cast<std::int32_t>(block)}).counts();
  EXPECT_EQ(counts, (TileCounts{.skip = 13, .partial = 0, .full = 3}));
}

TEST_P(BlockMaps, AreThoseOfTheirHeadInTheSchedule) {
  const std::int64_t block = GetParam();
  const MaskShape shape{.batch = 1, .heads = 2, .rows = block, .columns = 2 * block};
  const LoweredMask lowered = lower(from_block_map(BlockMap(shape, block, std::vector<std::uint8_t>{1, 0, 0, 1})));
  const TileSchedule tiles = schedule(lowered, {static_cast<std::int32_t>(block), static_cast<std::int32_t>(block)});
  for (std::int32_t head = 0; head < 2; ++head) {
    ASSERT_EQ(tiles.row_runs(0, head, 0).size(), 1U);
    EXPECT_EQ(tiles.row_runs(0, head, 0)[0], (flashmask::Run{head, head + 1, TileKind::full}));
  }
}

TEST(BlockMap, OfWholeTilesIsKeptBesideIntervals) {
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 1024, .columns = 1024};
  const Mask causal = masks::causal(1024, 1024);
  const auto lowered_with = [&](std::int64_t block) {
    const std::vector<std::uint8_t> keep(static_cast<std::size_t>(1024 / block * (1024 / block)), 1);
    return lower(causal & BlockMap(shape, block, keep));
  };
  EXPECT_EQ(lowered_with(128).form(), MaskForm::intervals);
  EXPECT_NE(lowered_with(128).blocks(), nullptr);
  EXPECT_EQ(lowered_with(128).why(),
            "every column has at most two masked row ranges, and the block map is kept beside them");
  EXPECT_EQ(&lowered_with(128).intervals(), &lower(causal).intervals());
  EXPECT_EQ(lowered_with(64).blocks(), nullptr);
}

TEST(BlockMap, RefusesOtherSizesAndValues) {
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 100, .columns = 200};
  const auto build = [&](std::int64_t block, std::vector<std::uint8_t> keep) {
    return refusal([&] { BlockMap(shape, block, keep); });
  };
  EXPECT_EQ(build(100, {1, 1}), "BlockMap: block is 100; give a multiple of 16, such as 64, 128 or 256");
  EXPECT_EQ(build(128, {1, 1, 1}), "BlockMap: keep has 3 values but batch x heads x row blocks x column blocks is 2");
  EXPECT_EQ(build(128, {1, 2}), "BlockMap: keep[1] is 2; give 1 (keep) or 0 (leave out)");
  EXPECT_EQ(
      refusal([&] {
        masks::causal(100, 100) & BlockMap(shape, 128, std::vector<std::uint8_t>{1, 1});
      }),
      "Mask & BlockMap: the mask is 1 x 1 x 100 x 100 and the map is for 1 x 1 x 100 x 200 (batch x heads x rows x "
      "columns); give the same rows and columns, and equal batch and heads or 1");
}

}  // namespace
}  // namespace flashmask
