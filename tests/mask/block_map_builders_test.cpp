// SPDX-License-Identifier: Apache-2.0
#include "flashmask/block_map_builders.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/error.h"
#include "source_folder.h"

namespace flashmask {
namespace {

using Keeps = std::function<bool(std::int64_t, std::int64_t)>;

MaskShape square(std::int64_t tokens) { return {.batch = 1, .heads = 1, .rows = tokens, .columns = tokens}; }

/// keeps(row of blocks, column of blocks), the same for every batch entry and head.
void expect_map(const BlockMap& map, const Keeps& keeps) {
  for (std::int64_t b = 0; b < map.shape().batch; ++b) {
    for (std::int64_t h = 0; h < map.shape().heads; ++h) {
      for (std::int64_t i = 0; i < map.block_rows(); ++i) {
        for (std::int64_t j = 0; j < map.block_columns(); ++j) {
          EXPECT_EQ(map.keeps(b, h, i, j), keeps(i, j)) << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
}

/// Kept blocks of a row.
std::int64_t kept(const BlockMap& map, std::int64_t batch, std::int64_t head, std::int64_t row) {
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < map.block_columns(); ++j) count += map.keeps(batch, head, row, j) ? 1 : 0;
  return count;
}

bool is_one_of(std::int64_t value, const std::set<std::int64_t>& values) { return values.contains(value); }

TEST(ButterflyMap, KeepsBlocksThatDifferInOneBit) {
  expect_map(block_maps::butterfly(square(16 * 16), 16), [](std::int64_t i, std::int64_t j) {
    return is_one_of(i ^ j, {0, 1, 2, 4, 8});
  });
}

TEST(ButterflyMap, TakesAsManyStridesAsAskedFor) {
  const BlockMap map = block_maps::butterfly(square(32 * 64), 64, 3);
  expect_map(map, [](std::int64_t i, std::int64_t j) { return is_one_of(i ^ j, {0, 1, 2, 4}); });
  EXPECT_EQ(map.density(), 4.0 / 32);
  expect_map(block_maps::butterfly(square(32 * 64), 64, 0), [](std::int64_t i, std::int64_t j) { return i == j; });
}

TEST(ButterflyMap, WithFewerRowsIsTheLowerPartOfTheSquareOne) {
  const BlockMap tall = block_maps::butterfly({.batch = 2, .heads = 3, .rows = 100, .columns = 1000}, 16);
  ASSERT_EQ(tall.block_rows(), 7);
  ASSERT_EQ(tall.block_columns(), 63);
  expect_map(tall, [](std::int64_t i, std::int64_t j) { return is_one_of((i + 56) ^ j, {0, 1, 2, 4, 8, 16, 32}); });
}

TEST(ButterflyMap, WithMoreRowsLeavesTheRowsBeforeTheFirstColumnEmpty) {
  expect_map(block_maps::butterfly({.batch = 1, .heads = 1, .rows = 64, .columns = 32}, 16),
             [](std::int64_t i, std::int64_t j) {
               return i >= 2 && is_one_of((i - 2) ^ j, {0, 1});
             });
}

TEST(StridedMap, KeepsMultiplesOfTheStrideOnBothSides) {
  expect_map(block_maps::strided(square(20 * 128), 128, 6),
             [](std::int64_t i, std::int64_t j) { return std::abs(i - j) % 6 == 0; });
  expect_map(block_maps::strided({.batch = 1, .heads = 1, .rows = 48, .columns = 160}, 16, 4),
             [](std::int64_t i, std::int64_t j) { return std::abs(i + 7 - j) % 4 == 0; });
}

TEST(SlidingMap, KeepsNeighbours) {
  expect_map(block_maps::sliding(square(1000), 64, 2, 1),
             [](std::int64_t i, std::int64_t j) { return j >= i - 2 && j <= i + 1; });
  expect_map(block_maps::sliding({.batch = 1, .heads = 1, .rows = 64, .columns = 160}, 16, 0, 0),
             [](std::int64_t i, std::int64_t j) { return j == i + 6; });
}

TEST(RandomMap, KeepsAsManyBlocksARowAsAskedFor) {
  const MaskShape shape{.batch = 2, .heads = 3, .rows = 1000, .columns = 2000};
  const BlockMap map = block_maps::random(shape, 64, 5, 7);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < map.block_rows(); ++i) EXPECT_EQ(kept(map, b, h, i), 5);
    }
  }
  EXPECT_EQ(block_maps::random(shape, 64, 0, 7).density(), 0);
  EXPECT_EQ(block_maps::random(shape, 64, 32, 7).density(), 1);
}

/// Expected values come from another implementation of the 64-bit Mersenne twister.
TEST(RandomMap, GivesTheSameMapOnEveryMachine) {
  const BlockMap map = block_maps::random(square(4 * 16), 16, 2, 1);
  expect_map(map, [](std::int64_t i, std::int64_t j) {
    constexpr std::array<std::array<int, 4>, 4> drawn{{{1, 1, 0, 0}, {1, 1, 0, 0}, {1, 0, 1, 0}, {1, 0, 1, 0}}};
    return drawn[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] != 0;
  });
}

/// 4 of 16 blocks in 4,096 rows: each is kept 1,024 times, with a standard deviation of 28.
TEST(RandomMap, KeepsEveryBlockEquallyOften) {
  const BlockMap map = block_maps::random({.batch = 1, .heads = 1, .rows = 4096 * 16, .columns = 256}, 16, 4, 3);
  for (std::int64_t j = 0; j < 16; ++j) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < 4096; ++i) count += map.keeps(0, 0, i, j) ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(count), 1024, 5 * 28) << j;
  }
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

TEST(BestBlocks, KeepsTheBestBlocksOfEachRow) {
  const std::vector<float> scores = {1,      5,  3,      4,  //
                                     2,      2,  2,      2,  //
                                     kNever, -1, kNever, kNever};
  const BlockMap map = block_maps::best({.batch = 1, .heads = 1, .rows = 48, .columns = 64}, 16, scores, 2);
  constexpr std::array<std::array<int, 4>, 3> expected{{{0, 1, 0, 1}, {1, 1, 0, 0}, {0, 1, 0, 0}}};
  expect_map(map, [&](std::int64_t i, std::int64_t j) {
    return expected[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] != 0;
  });
}

TEST(BestBlocks, KeepsAllWhereThereAreNoMore) {
  EXPECT_EQ(block_maps::best(square(32), 16, std::vector<float>{1, 2, 3, 4}, 100).density(), 1);
  EXPECT_EQ(block_maps::best(square(32), 16, std::vector<float>{1, 2, 3, 4}, 0).density(), 0);
}

TEST(BlocksAtLeast, KeepsWhatReachesTheThreshold) {
  const std::vector<float> scores = {1, 5, kNever, 3};
  expect_map(block_maps::at_least(square(32), 16, scores, 3), [](std::int64_t, std::int64_t j) { return j == 1; });
  EXPECT_EQ(block_maps::at_least(square(32), 16, scores, kNever).density(), 0.75);
}

TEST(BlocksAtLeast, ReadsScoresOfEveryBatchEntryAndHead) {
  std::vector<float> scores(2 * 2 * 4);
  scores[0] = scores[5] = scores[10] = scores[15] = 1;  // block k % 4 of batch entry and head k / 4
  const BlockMap map = block_maps::at_least({.batch = 2, .heads = 2, .rows = 32, .columns = 32}, 16, scores, 1);
  for (std::int64_t k = 0; k < 16; ++k) {
    EXPECT_EQ(map.keeps(k / 8, k / 4 % 2, k / 2 % 2, k % 2), k % 5 == 0) << k;
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(BlockMapBuilders, SayWhatIsWrong) {
  const std::vector<float> scores = {1, 2, std::nanf(""), 4};
  EXPECT_EQ(refusal([] { block_maps::butterfly(square(32), 16, -1); }),
            "butterfly: strides is -1; give how many strides 1, 2, 4, ... to take (>= 0)");
  EXPECT_EQ(refusal([] { block_maps::strided(square(32), 16, 0); }),
            "strided: stride is 0; give a distance in blocks (>= 1)");
  EXPECT_EQ(refusal([] { block_maps::sliding(square(32), 16, 0, -3); }),
            "sliding: right is -3; give the number of blocks on that side of a row's own (>= 0)");
  EXPECT_EQ(refusal([] { block_maps::random(square(32), 16, 3, 1); }),
            "random: kept is 3; give a number of blocks a row from 0 to the columns of blocks, 2");
  EXPECT_EQ(refusal([&] { block_maps::best(square(32), 16, scores, 1); }),
            "best: scores[2] is not a number; give a number, or -inf for a block that is never kept");
  EXPECT_EQ(refusal([&] { block_maps::best(square(64), 16, scores, 1); }),
            "best: scores has 4 values but batch x heads x block rows x block columns is 16");
  EXPECT_EQ(refusal([&] { block_maps::at_least(square(32), 16, std::vector<float>(4), std::nanf("")); }),
            "at_least: threshold is not a number; give the lowest score that is kept");
  EXPECT_EQ(refusal([] { block_maps::sliding(square(32), 0, 1, 1); }),
            "sliding: block is 0; give a multiple of 16, such as 64, 128 or 256");
  EXPECT_EQ(refusal([] { block_maps::sliding(square(32), 24, 1, 1); }),
            "BlockMap: block is 24; give a multiple of 16, such as 64, 128 or 256");
  EXPECT_EQ(refusal([] { block_maps::sliding(square(-1), 16, 1, 1); }),
            "sliding: shape.rows is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

TEST(BlockMapBuilders, TakeEmptyShapes) {
  EXPECT_EQ(block_maps::butterfly(square(0), 64).block_rows(), 0);
  EXPECT_EQ(block_maps::random({.batch = 1, .heads = 1, .rows = 100, .columns = 0}, 64, 0, 1).block_rows(), 2);
}

/// One character a block.
std::vector<std::string> picture(const BlockMap& map) {
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < map.block_rows(); ++i) {
    std::string& line = lines.emplace_back();
    for (std::int64_t j = 0; j < map.block_columns(); ++j) line += map.keeps(0, 0, i, j) ? '#' : '.';
  }
  return lines;
}

TEST(BlockMapBuilders, AreDrawnInTheDocumentation) {
  const MaskShape shape = square(160);
  std::vector<float> scores;
  for (int k = 0; k < 100; ++k) scores.push_back(k % 10 > k / 10 ? kNever : static_cast<float>(k * k % 17));
  const std::vector<std::pair<std::string, BlockMap>> maps = {{"butterfly", block_maps::butterfly(shape, 16)},
                                                              {"strided", block_maps::strided(shape, 16, 4)},
                                                              {"sliding", block_maps::sliding(shape, 16, 2, 1)},
                                                              {"random", block_maps::random(shape, 16, 3, 1)},
                                                              {"best", block_maps::best(shape, 16, scores, 3)}};
  std::vector<std::string> lines(11);
  for (const auto& [title, map] : maps) {
    const std::vector<std::string> drawn = picture(map);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      std::string cell = i == 0 ? title : drawn[i - 1];
      cell.resize(15, ' ');
      lines[i] += cell;
    }
  }
  std::string block;
  for (std::string& line : lines) block += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  std::ifstream file(test::source_folder() + "/docs/masks.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(page.find(block), std::string::npos) << "docs/masks.md should hold\n" << block;
}

}  // namespace
}  // namespace flashmask
