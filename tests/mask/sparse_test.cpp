// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using masks::HashedToken;
using testing::expect_visible;
using testing::refusal;

TEST(GlobalSlidingWindow, GlobalsSeeAndAreSeenByAll) {
  for (const std::int64_t tokens : {0, 1, 10, 65}) {
    for (const std::int64_t globals : {0, 1, 7, 65}) {
      if (globals > tokens) continue;
      for (const auto& [left, right] : {std::pair{0, 0}, {1, 1}, {9, 2}, {0, 30}, {100, 100}}) {
        expect_visible(masks::global_sliding_window(tokens, globals, left, right),
                       [g = globals, l = left, r = right](auto i, auto j) {
                         return i < g || j < g || (i - l <= j && j <= i + r);
                       });
      }
    }
  }
}

TEST(GlobalSlidingWindow, RefusesNumbersOutOfRange) {
  EXPECT_EQ(refusal([] { masks::global_sliding_window(10, 11, 1, 1); }),
            "global_sliding_window: globals is 11; give a number from 0 to tokens, which is 10");
  EXPECT_EQ(refusal([] { masks::global_sliding_window(10, 2, -1, 1); }),
            "global_sliding_window: left is -1; give the number of columns on that side of self (>= 0)");
  EXPECT_EQ(refusal([] { masks::global_sliding_window(10, 2, 1, -7); }),
            "global_sliding_window: right is -7; give the number of columns on that side of self (>= 0)");
}

/// Tokens at positions 0 … in random buckets, sorted as the builder wants them.
std::vector<HashedToken> random_hash(std::mt19937_64& random, std::int64_t tokens, std::int64_t buckets) {
  std::vector<HashedToken> all;
  for (std::int64_t p = 0; p < tokens; ++p) all.push_back({testing::draw(random, -1, buckets - 2), p});
  std::ranges::sort(all, {}, [](const auto& token) { return std::pair(token.bucket, token.position); });
  return all;
}

TEST(HashSparseSorted, SeesKeysOfItsBucketUpToItsPosition) {
  std::mt19937_64 random(11);
  for (const auto& [rows, columns] : testing::sizes) {
    for (const std::int64_t buckets : {1, 3, 20}) {
      const std::vector<HashedToken> q = random_hash(random, rows, buckets);
      const std::vector<HashedToken> k = random_hash(random, columns, buckets);
      expect_visible(masks::hash_sparse_sorted(q, k), [&](auto row, auto column) {
        const auto i = static_cast<std::size_t>(row);
        const auto j = static_cast<std::size_t>(column);
        return q[i].bucket == k[j].bucket && k[j].position <= q[i].position;
      });
    }
  }
}

TEST(HashSparseSorted, RefusesTokensOutOfOrder) {
  const std::vector<HashedToken> sorted = {{0, 1}, {0, 4}, {2, 0}};
  const std::vector<HashedToken> unsorted = {{0, 4}, {0, 1}, {2, 0}};
  EXPECT_EQ(
      refusal([&] { masks::hash_sparse_sorted(sorted, unsorted); }),
      "hash_sparse_sorted: keys[1] (bucket 0, position 1) belongs before the one it follows; sort keys by bucket, "
      "then position");
  EXPECT_EQ(refusal([&] { masks::hash_sparse_sorted(unsorted, sorted); }),
            "hash_sparse_sorted: queries[1] (bucket 0, position 1) belongs before the one it follows; sort queries by "
            "bucket, then position");
}

TEST(RandomEviction, DropsEachKeyAtItsRowInEveryHead) {
  std::mt19937_64 random(12);
  const std::int64_t heads = 3;
  for (const std::int64_t tokens : {0, 1, 10, 65}) {
    std::vector<std::int64_t> evicted_at(static_cast<std::size_t>(heads * tokens));
    for (std::int64_t& row : evicted_at) row = testing::draw(random, 0, tokens);
    const Mask mask = masks::random_eviction(tokens, evicted_at, heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      expect_visible(
          mask, [&, at = testing::Table(evicted_at)](auto i, auto j) { return j <= i && i < at[h * tokens + j]; }, 0,
          h);
    }
  }
}

TEST(RandomEviction, RefusesAnotherNumberOfRows) {
  const std::vector<std::int64_t> evicted_at(10, 4);
  EXPECT_EQ(
      refusal([&] { masks::random_eviction(10, evicted_at, 2); }),
      "random_eviction: evicted_at has 10 rows but heads x tokens is 20; give the row of every head's every column");
}

TEST(RandomEviction, RefusesARowBeyondTheSequence) {
  const std::vector<std::int64_t> evicted_at = {1, 2, 4};
  EXPECT_EQ(refusal([&] { masks::random_eviction(3, evicted_at, 1); }),
            "random_eviction: evicted_at[2] is 4; give a row from 0 to tokens, which is 3 and means never");
}

}  // namespace
}  // namespace flashmask
