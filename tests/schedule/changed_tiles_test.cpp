// SPDX-License-Identifier: Apache-2.0
#include "base/changed_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace flashmask {
namespace {

std::vector<std::size_t> drained(ChangedTiles& tiles) {
  std::vector<std::size_t> all;
  tiles.drain([&](std::size_t tile) { all.push_back(tile); });
  return all;
}

TEST(ChangedTiles, DrainsInAscendingOrderEachOnce) {
  constexpr std::uint32_t count = 300'000;  // more than one word of words
  ChangedTiles tiles(count);
  std::mt19937 random(1);
  std::set<std::size_t> expected{0, 63, 64, 4095, 4096, count - 1};
  for (int i = 0; i < 500; ++i) expected.insert(random() % count);
  std::vector<std::size_t> shuffled(expected.begin(), expected.end());
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (const std::size_t tile : shuffled) {
    tiles.insert(static_cast<std::uint32_t>(tile));
    tiles.insert(static_cast<std::uint32_t>(tile));
  }
  EXPECT_EQ(drained(tiles), std::vector<std::size_t>(expected.begin(), expected.end()));
}

TEST(ChangedTiles, IsEmptyAfterDraining) {
  ChangedTiles tiles(100);
  tiles.insert(70);
  drained(tiles);
  EXPECT_TRUE(drained(tiles).empty());
  tiles.insert(3);
  EXPECT_EQ(drained(tiles), std::vector<std::size_t>{3});
}

}  // namespace
}  // namespace flashmask
