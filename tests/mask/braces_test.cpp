// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "flashmask/builders.h"
#include "mask/visibility.h"

/// Numbers in braces, in place of a vector.
namespace flashmask {
namespace {

using Numbers = std::vector<std::int64_t>;

void expect_same(const Mask& a, const Mask& b) {
  EXPECT_EQ(a.description(), b.description());
  EXPECT_EQ(expand(a), expand(b));
}

TEST(Builders, TakeLengthsInBraces) {
  const Numbers lengths{6, 3}, keys{5, 7}, prefixes{2, 1}, parents{-1, 0};
  expect_same(masks::causal_document({6, 3}, 10), masks::causal_document(lengths, 10));
  expect_same(masks::causal_document({6, 3}, {5, 7}), masks::causal_document(lengths, keys));
  expect_same(masks::document({6, 3}, 10), masks::document(lengths, 10));
  expect_same(masks::document({6, 3}, {5, 7}), masks::document(lengths, keys));
  expect_same(masks::sliding_window_document({6, 3}, 10, 2), masks::sliding_window_document(lengths, 10, 2));
  expect_same(masks::causal_blockwise({6, 3}, 9), masks::causal_blockwise(lengths, 9));
  expect_same(masks::prefix_lm_document({6, 3}, {2, 1}, 10), masks::prefix_lm_document(lengths, prefixes, 10));
  expect_same(masks::tree({-1, 0}, {6, 3}, 9).mask, masks::tree(parents, lengths, 9).mask);
}

TEST(Builders, TakeWhatElseIsSeveralInBraces) {
  expect_same(masks::shared_question({{4, {2, 1}}, {3, {1}}}, 12),
              masks::shared_question(std::vector<masks::SharedQuestion>{{4, {2, 1}}, {3, {1}}}, 12));
  expect_same(masks::bidirectional_spans(9, {{1, 3}, {5, 9}}),
              masks::bidirectional_spans(9, std::vector<Span>{{1, 3}, {5, 9}}));
  expect_same(masks::global_tokens(9, {0, 4}, 1, 1), masks::global_tokens(9, Numbers{0, 4}, 1, 1));
  expect_same(masks::graph(4, {{0, 1}, {2, 3}}), masks::graph(4, std::vector<VisiblePair>{{0, 1}, {2, 3}}));
  expect_same(masks::medusa_tree({2, 2}, 8), masks::medusa_tree(Numbers{2, 2}, 8));
}

TEST(Builders, OfDocumentsTakeNoneInBraces) { expect_same(masks::document({}, 5), masks::document(Numbers{}, 5)); }

}  // namespace
}  // namespace flashmask
