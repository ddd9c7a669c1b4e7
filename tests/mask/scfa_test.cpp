// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;
using testing::Table;
using Numbers = std::vector<std::int64_t>;
using Kept = std::vector<std::uint8_t>;

Numbers random_numbers(std::mt19937_64& random, std::int64_t count, std::int64_t low, std::int64_t high) {
  Numbers numbers(static_cast<std::size_t>(count));
  for (std::int64_t& number : numbers) number = testing::draw(random, low, high);
  return numbers;
}

Kept random_kept(std::mt19937_64& random, std::int64_t count) {
  Kept kept(static_cast<std::size_t>(count));
  for (std::uint8_t& one : kept) one = static_cast<std::uint8_t>(testing::draw(random, 0, 2));
  return kept;
}

TEST(ScfaHashSparse, SeesEarlierKeysOfItsBucketInEveryHead) {
  std::mt19937_64 random(1);
  for (const auto& [rows, columns] : testing::sizes) {
    for (const std::int64_t buckets : {1, 3, 40}) {
      const std::int64_t heads = 3;
      const Numbers queries = random_numbers(random, heads * rows, -1, buckets);
      const Numbers keys = random_numbers(random, heads * columns, -1, buckets);
      const Mask mask = masks::scfa_hash_sparse(queries, keys, heads);
      for (std::int64_t h = 0; h < heads; ++h) {
        expect_visible(
            mask,
            [q = Table(queries), k = Table(keys), row0 = h * rows, column0 = h * columns, shift = columns - rows](
                auto i, auto j) { return q[row0 + i] == k[column0 + j] && j <= i + shift; },
            0, h);
      }
    }
  }
}

TEST(ScfaHashSparse, IsTheSortedMaskBeforeSorting) {
  std::mt19937_64 random(2);
  const Numbers buckets = random_numbers(random, 130, 0, 6);
  std::vector<masks::HashedToken> sorted;
  for (std::int64_t p = 0; p < 130; ++p) sorted.push_back({buckets[static_cast<std::size_t>(p)], p});
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tie(a.bucket, a.position) < std::tie(b.bucket, b.position);
  });
  const Mask in_order = masks::scfa_hash_sparse(buckets, buckets, 1);
  expect_visible(masks::hash_sparse_sorted(sorted, sorted), [&](auto i, auto j) {
    return in_order.visible(0, 0, sorted[static_cast<std::size_t>(i)].position,
                            sorted[static_cast<std::size_t>(j)].position);
  });
}

TEST(ScfaQkSparse, SeesEarlierKeysThatAreKeptFromQueriesThatAreKept) {
  std::mt19937_64 random(3);
  for (const auto& [rows, columns] : testing::sizes) {
    const std::int64_t heads = 3;
    const Kept queries = random_kept(random, heads * rows);
    const Kept keys = random_kept(random, heads * columns);
    const Mask mask = masks::scfa_qk_sparse(queries, keys, heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      expect_visible(
          mask,
          [&, row0 = h * rows, column0 = h * columns, shift = columns - rows](auto i, auto j) {
            return queries[static_cast<std::size_t>(row0 + i)] != 0 &&
                   keys[static_cast<std::size_t>(column0 + j)] != 0 && j <= i + shift;
          },
          0, h);
    }
  }
}

TEST(ScfaQkSparse, ThatKeepsEverythingIsCausal) {
  EXPECT_EQ(expand(masks::scfa_qk_sparse(Kept(70, 1), Kept(97, 1), 1)), expand(masks::causal(70, 97)));
}

TEST(Scfa, RefusesListsThatDoNotDivideAmongTheHeads) {
  EXPECT_EQ(refusal([] { masks::scfa_hash_sparse(Numbers(7), Numbers(8), 2); }),
            "scfa_hash_sparse: query_buckets has 7 values for 2 heads; give as many for every head");
  EXPECT_EQ(refusal([] { masks::scfa_qk_sparse(Kept(8), Kept(7), 2); }),
            "scfa_qk_sparse: kept_keys has 7 values for 2 heads; give as many for every head");
  EXPECT_EQ(refusal([] { masks::scfa_qk_sparse(Kept(8), Kept(8), 0); }),
            "scfa_qk_sparse: heads is 0; give the number of mask heads (>= 1)");
}

}  // namespace
}  // namespace flashmask
