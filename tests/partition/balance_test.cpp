// SPDX-License-Identifier: Apache-2.0
#include "partition/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::draw;

TEST(EvenOut, SwapsTilesUntilNoRankHasATileTooMuch) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const auto ranks = static_cast<std::int32_t>(draw(random, 1, 9));
    TileOwners owners;
    std::vector<std::int64_t> work;
    // Dear tiles lie together, so that the first ranks have them.
    for (std::int64_t i = draw(random, 1, 200), n = i; i > 0; --i) {
      owners.push_back(static_cast<std::int32_t>((n - i) * ranks / n));
      work.push_back(i * i + draw(random, 0, 50));
    }
    const TileOwners before = owners;
    even_out(owners, work, ranks);
    EXPECT_TRUE(is_even(work_of_ranks(owners, work, ranks), work));
    EXPECT_EQ(owners.back(), before.back());
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(std::ranges::count(owners, rank), std::ranges::count(before, rank));
  }
}

TEST(EvenOut, LeavesAloneWhatIsEven) {
  TileOwners owners{0, 1, 0, 1};
  even_out(owners, std::vector<std::int64_t>{100, 101, 100, 101}, 2);
  EXPECT_EQ(owners, (TileOwners{0, 1, 0, 1}));
}

TEST(IsEven, AllowsThreePercentOrATile) {
  const std::vector<std::int64_t> small(300, 1), large{60, 40};
  EXPECT_TRUE(is_even(std::vector<std::int64_t>{103, 97}, small));
  EXPECT_FALSE(is_even(std::vector<std::int64_t>{104, 96}, small));
  EXPECT_TRUE(is_even(large, large));
}

TEST(EnlargeLastOwner, GivesTheLastTileToARankThatHasMost) {
  TileOwners owners{0, 0, 0, 1, 1};
  enlarge_last_owner(owners, 2);
  EXPECT_EQ(owners, (TileOwners{0, 0, 1, 1, 1}));
  enlarge_last_owner(owners, 2);
  EXPECT_EQ(owners, (TileOwners{0, 0, 1, 1, 1}));
}

}  // namespace
}  // namespace flashmask
