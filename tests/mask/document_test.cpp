// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::owners;
using testing::refusal;
using testing::Table;

using Lengths = std::vector<std::int64_t>;

/// Calls body(lengths, tokens) for random packings, with zero-length documents and padding, and for none at all.
template <typename Body>
void for_random_packings(const Body& body) {
  std::mt19937_64 random(3);
  body(Lengths{}, std::int64_t{0});
  body(Lengths{}, std::int64_t{6});
  body(Lengths{0, 4, 0, 0, 3, 0}, std::int64_t{9});
  for (std::int64_t tokens = 1; tokens < 90; tokens += 8) body(testing::random_lengths(random, tokens), tokens);
}

TEST(CausalDocument, SeesItselfCausallyAndPaddingSeesNothing) {
  for_random_packings([](const Lengths& lengths, std::int64_t tokens) {
    const Table owner(owners(lengths, tokens));
    expect_visible(masks::causal_document(lengths, tokens),
                   [&](auto i, auto j) { return owner[i] >= 0 && owner[i] == owner[j] && j <= i; });
  });
}

TEST(Document, SeesItselfBothWaysAndPaddingSeesNothing) {
  for_random_packings([](const Lengths& lengths, std::int64_t tokens) {
    const Table owner(owners(lengths, tokens));
    expect_visible(masks::document(lengths, tokens),
                   [&](auto i, auto j) { return owner[i] >= 0 && owner[i] == owner[j]; });
  });
}

TEST(SlidingWindowDocument, EndsWhereItsDocumentBegins) {
  for_random_packings([](const Lengths& lengths, std::int64_t tokens) {
    const Table owner(owners(lengths, tokens));
    for (const std::int64_t w : {1, 4, 200}) {
      expect_visible(masks::sliding_window_document(lengths, tokens, w),
                     [&](auto i, auto j) { return owner[i] >= 0 && owner[i] == owner[j] && j <= i && i - j < w; });
    }
  });
}

TEST(CausalBlockwise, LetsTheLastDocumentSeeAll) {
  for_random_packings([](Lengths lengths, std::int64_t tokens) {
    for (const std::int64_t length : Lengths(lengths)) tokens -= length;
    lengths.push_back(tokens);
    for (tokens = 0; const std::int64_t length : lengths) tokens += length;
    const auto last = static_cast<std::int64_t>(lengths.size()) - 1;
    const Table owner(owners(lengths, tokens));
    expect_visible(masks::causal_blockwise(lengths, tokens),
                   [&](auto i, auto j) { return j <= i && (owner[i] == owner[j] || owner[i] == last); });
  });
}

TEST(CausalBlockwise, HidesPaddingEvenWhereThatTakesThreeRanges) {
  const Lengths lengths = {4, 3, 2};
  const Table owner(owners(lengths, 12));
  const Mask mask = masks::causal_blockwise(lengths, 12);
  expect_visible(mask, [&](auto i, auto j) {
    return owner[i] >= 0 && owner[j] >= 0 && j <= i && (owner[i] == owner[j] || owner[i] == 2);
  });
  ASSERT_TRUE(find_misfit(mask));
  EXPECT_EQ(find_misfit(mask)->column, 1);
}

/// Lengths of both sides, random and with documents that lack queries or keys.
struct TwoSides {
  Lengths queries, keys;
};

const std::vector<TwoSides>& two_sides() {
  static const std::vector<TwoSides> all = {
      {{}, {}}, {{3, 5}, {3, 5}}, {{1, 1, 1}, {9, 0, 4}}, {{7, 0, 2}, {2, 6, 5}}, {{12, 3}, {4, 3}}, {{0}, {5}}};
  return all;
}

std::int64_t sum(const Lengths& lengths) {
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  return total;
}

TEST(CausalDocument, IsBottomRightAlignedInEveryDocumentOfTwoLengths) {
  for (const auto& [queries, keys] : two_sides()) {
    const Table query_owner(owners(queries, sum(queries)));
    const Table key_owner(owners(keys, sum(keys)));
    const Table query_place(testing::places(queries, sum(queries)));
    const Table key_place(testing::places(keys, sum(keys)));
    expect_visible(masks::causal_document(queries, keys), [&, q = Table(queries), k = Table(keys)](auto i, auto j) {
      const std::int64_t d = query_owner[i];
      return d == key_owner[j] && key_place[j] <= query_place[i] + k[d] - q[d];
    });
  }
}

TEST(Document, PairsTheQueriesAndKeysOfTwoLengths) {
  for (const auto& [queries, keys] : two_sides()) {
    const Table query_owner(owners(queries, sum(queries)));
    const Table key_owner(owners(keys, sum(keys)));
    expect_visible(masks::document(queries, keys), [&](auto i, auto j) { return query_owner[i] == key_owner[j]; });
  }
}

TEST(CausalDocument, RefusesDocumentsThatDoNotFit) {
  const Lengths lengths = {4000, 200};
  EXPECT_EQ(refusal([&] { masks::causal_document(lengths, 4096); }),
            "causal_document: documents add up to 4,200 tokens but tokens is 4,096; give tokens >= 4200 or shorten the "
            "documents");
}

TEST(Document, RefusesANegativeLength) {
  const Lengths lengths = {4, -2};
  EXPECT_EQ(refusal([&] { masks::document(lengths, 8); }),
            "document: documents[1] is -2; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

TEST(Document, RefusesLengthsOfOneSideOnly) {
  const Lengths queries = {4, 2};
  const Lengths keys = {4};
  EXPECT_EQ(refusal([&] { masks::document(queries, keys); }),
            "document: 2 query lengths and 1 key length; give both lengths of every document");
}

TEST(SlidingWindowDocument, RefusesAWindowThatSeesNothing) {
  const Lengths lengths = {4};
  EXPECT_EQ(
      refusal([&] { masks::sliding_window_document(lengths, 4, -3); }),
      "sliding_window_document: window is -3; give the number of columns that a row sees, itself included (>= 1)");
}

TEST(CausalBlockwise, RefusesDocumentsThatDoNotFit) {
  const Lengths lengths = {4, 2};
  EXPECT_EQ(
      refusal([&] { masks::causal_blockwise(lengths, 5); }),
      "causal_blockwise: documents add up to 6 tokens but tokens is 5; give tokens >= 6 or shorten the documents");
}

}  // namespace
}  // namespace flashmask
