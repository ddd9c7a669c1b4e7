// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;
using testing::Table;

TEST(PrefixLmDocument, SeesItsPrefixBothWaysAndTheRestCausally) {
  std::mt19937_64 random(8);
  for (std::int64_t tokens = 0; tokens < 90; tokens += 7) {
    const std::vector<std::int64_t> lengths = testing::random_lengths(random, tokens);
    std::vector<std::int64_t> prefixes = lengths;
    for (std::int64_t& prefix : prefixes) prefix = testing::draw(random, 0, prefix);
    const Table owner(testing::owners(lengths, tokens));
    const Table place(testing::places(lengths, tokens));
    expect_visible(masks::prefix_lm_document(lengths, prefixes, tokens), [&, prefix = Table(prefixes)](auto i, auto j) {
      return owner[i] >= 0 && owner[i] == owner[j] && (j <= i || place[j] < prefix[owner[j]]);
    });
  }
}

TEST(PrefixLmCausal, ShowsItsPrefixToAll) {
  for (const std::int64_t tokens : {0, 1, 10, 65}) {
    for (std::int64_t prefix = 0; prefix <= tokens; prefix += 5) {
      expect_visible(masks::prefix_lm_causal(tokens, prefix),
                     [prefix](auto i, auto j) { return j <= i || j < prefix; });
    }
  }
}

TEST(PrefixLmDocument, RefusesAPrefixLongerThanItsDocument) {
  const std::vector<std::int64_t> lengths = {3, 2};
  const std::vector<std::int64_t> prefixes = {3, 4};
  EXPECT_EQ(
      refusal([&] { masks::prefix_lm_document(lengths, prefixes, 8); }),
      "prefix_lm_document: prefixes[1] is 4 but that document has 2 tokens; give a prefix from 0 to the document's "
      "length");
}

TEST(PrefixLmDocument, RefusesAnotherNumberOfPrefixes) {
  const std::vector<std::int64_t> lengths = {3, 2};
  const std::vector<std::int64_t> prefixes = {3};
  EXPECT_EQ(refusal([&] { masks::prefix_lm_document(lengths, prefixes, 8); }),
            "prefix_lm_document: 1 prefix length for 2 documents; give one a document");
}

TEST(PrefixLmCausal, RefusesAPrefixLongerThanTheSequence) {
  EXPECT_EQ(refusal([] { masks::prefix_lm_causal(8, 9); }),
            "prefix_lm_causal: prefix is 9 but the sequence has 8 tokens; give a prefix from 0 to tokens");
  EXPECT_EQ(refusal([] { masks::prefix_lm_causal(8, -1); }),
            "prefix_lm_causal: prefix is -1 but the sequence has 8 tokens; give a prefix from 0 to tokens");
}

}  // namespace
}  // namespace flashmask
