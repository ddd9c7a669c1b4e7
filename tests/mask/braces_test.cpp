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

TEST(Builders, TakeListsOfOne) {
  const Numbers two{2}, ten{10};
  expect_same(masks::causal_document({2}, {10}), masks::causal_document(two, ten));
  expect_same(masks::document({2}, {10}), masks::document(two, ten));
  EXPECT_EQ(masks::causal_document({2}, {10}).shape(), (MaskShape{1, 1, 2, 10}));
  EXPECT_EQ(masks::document(two, {10}).shape(), (MaskShape{1, 1, 2, 10}));
  EXPECT_EQ(masks::document({2}, 10).shape(), (MaskShape{1, 1, 10, 10}));
  expect_same(masks::sliding_window_document({6}, 10, 2), masks::sliding_window_document(Numbers{6}, 10, 2));
  expect_same(masks::causal_blockwise({6}, 9), masks::causal_blockwise(Numbers{6}, 9));
  expect_same(masks::prefix_lm_document({6}, {2}, 10), masks::prefix_lm_document(Numbers{6}, two, 10));
  expect_same(masks::tree({-1}, {6}, 9).mask, masks::tree(Numbers{-1}, Numbers{6}, 9).mask);
  expect_same(masks::tree_in_order({-1}, 3), masks::tree_in_order(Numbers{-1}, 3));
  expect_same(masks::shared_question({{4, {2}}}, 12),
              masks::shared_question(std::vector<masks::SharedQuestion>{{4, {2}}}, 12));
  expect_same(masks::bidirectional_spans(9, {{1, 3}}), masks::bidirectional_spans(9, std::vector<Span>{{1, 3}}));
  expect_same(masks::qk_sparse_segments(9, {{1, 3}}), masks::qk_sparse_segments(9, std::vector<Span>{{1, 3}}));
  expect_same(masks::global_tokens(9, {4}, 1, 1), masks::global_tokens(9, Numbers{4}, 1, 1));
  expect_same(masks::graph(4, {{0, 1}}), masks::graph(4, std::vector<VisiblePair>{{0, 1}}));
  expect_same(masks::medusa_tree({2}, 8), masks::medusa_tree(two, 8));
  expect_same(masks::drop_queries(masks::full(4, 4), {2}), masks::drop_queries(masks::full(4, 4), two));
  expect_same(masks::neighbourhood({{8, 3, 1}}),
              masks::neighbourhood(std::vector<masks::NeighbourhoodAxis>{{8, 3, 1}}));
}

TEST(Builders, OfDocumentsTakeNoneInBraces) { expect_same(masks::document({}, 5), masks::document(Numbers{}, 5)); }

}  // namespace
}  // namespace flashmask
