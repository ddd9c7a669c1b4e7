// SPDX-License-Identifier: Apache-2.0
#include "flashmask/mask.h"

#include <array>
#include <climits>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "flashmask/builders.h"
#include "flashmask/draw.h"
#include "flashmask/explain.h"
#include "flashmask/slice.h"
#include "flashmask/startend_row_indices.h"

namespace flashmask::c_api {
namespace {

using Lengths = std::vector<std::int64_t>;

void expect_same(const MaskHandle& mask, const Mask& expected) {
  ASSERT_NE(mask, nullptr);
  EXPECT_EQ(mask->mask.shape(), expected.shape());
  EXPECT_EQ(expand(mask->mask), expand(expected));
}

TEST(MaskBuilders, TakeRowsAndColumns) {
  expect_same(make(flashmask_mask_full, 5, 9), masks::full(5, 9));
  expect_same(make(flashmask_mask_causal, 5, 9), masks::causal(5, 9));
  expect_same(make(flashmask_mask_sliding_window, 9, 12, 3), masks::sliding_window(9, 12, 3));
}

TEST(MaskBuilders, ReadMinusOneAsNoLimitOfAWindow) {
  expect_same(make(flashmask_mask_window, 9, 9, 2, 1), masks::window(9, 9, 2, 1));
  expect_same(make(flashmask_mask_window, 9, 9, -1, 1), masks::window(9, 9, {}, 1));
  expect_same(make(flashmask_mask_window, 9, 9, 2, -1), masks::window(9, 9, 2, {}));
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_window(9, 9, -2, 0, &mask), FLASHMASK_INVALID_ARGUMENT, "-2");
}

TEST(MaskBuilders, TakeDocuments) {
  const Lengths documents{4, 0, 3};
  const std::int64_t* const data = documents.data();
  expect_same(make(flashmask_mask_causal_document, data, 3, 9), masks::causal_document(documents, 9));
  expect_same(make(flashmask_mask_document, data, 3, 9), masks::document(documents, 9));
  expect_same(make(flashmask_mask_sliding_window_document, data, 3, 9, 2),
              masks::sliding_window_document(documents, 9, 2));
  expect_same(make(flashmask_mask_causal_blockwise, data, 3, 7), masks::causal_blockwise(documents, 7));
}

TEST(MaskBuilders, TakeNullForNoDocuments) {
  expect_same(make(flashmask_mask_causal_document, nullptr, 0, 4), masks::causal_document({}, 4));
}

TEST(MaskBuilders, TakeDocumentsOfTwoLengths) {
  const Lengths queries{4, 2};
  const Lengths keys{3, 5};
  expect_same(make(flashmask_mask_causal_document_pairs, queries.data(), keys.data(), 2),
              masks::causal_document(queries, keys));
  expect_same(make(flashmask_mask_document_pairs, queries.data(), keys.data(), 2), masks::document(queries, keys));
}

TEST(MaskBuilders, TakeQuestionsAndTheirAnswers) {
  const Lengths first{3, 2};
  const Lengths second{1};
  const std::array<flashmask_shared_question, 2> given{{{sizeof(flashmask_shared_question), 4, first.data(), 2},
                                                        {sizeof(flashmask_shared_question), 2, second.data(), 1}}};
  const std::vector<masks::SharedQuestion> expected{{4, first}, {2, second}};
  expect_same(make(flashmask_mask_shared_question, given.data(), 2, 13), masks::shared_question(expected, 13));
}

TEST(MaskBuilders, TakeGlobalTokensPrefixesAndBlocks) {
  const Lengths documents{5, 4};
  const Lengths prefixes{2, 4};
  expect_same(make(flashmask_mask_global_sliding_window, 10, 2, 1, 3), masks::global_sliding_window(10, 2, 1, 3));
  expect_same(make(flashmask_mask_prefix_lm_document, documents.data(), prefixes.data(), 2, 10),
              masks::prefix_lm_document(documents, prefixes, 10));
  expect_same(make(flashmask_mask_prefix_lm_causal, 10, 4), masks::prefix_lm_causal(10, 4));
  expect_same(make(flashmask_mask_block_diffusion, 6, 2), masks::block_diffusion(6, 2));
}

TEST(MaskBuilders, TakeSpans) {
  const std::array<flashmask_span, 2> given{{{6, 8}, {2, 5}}};
  const std::vector<masks::Span> expected{{6, 8}, {2, 5}};
  expect_same(make(flashmask_mask_qk_sparse_segments, 10, given.data(), 2), masks::qk_sparse_segments(10, expected));
  expect_same(make(flashmask_mask_bidirectional_spans, 10, given.data(), 2), masks::bidirectional_spans(10, expected));
}

TEST(MaskBuilders, TakeHashedTokens) {
  const std::array<flashmask_hashed_token, 3> queries{{{0, 0}, {0, 3}, {1, 1}}};
  const std::array<flashmask_hashed_token, 4> keys{{{0, 0}, {0, 2}, {1, 1}, {1, 3}}};
  expect_same(make(flashmask_mask_hash_sparse_sorted, queries.data(), 3, keys.data(), 4),
              masks::hash_sparse_sorted(std::vector<masks::HashedToken>{{0, 0}, {0, 3}, {1, 1}},
                                        std::vector<masks::HashedToken>{{0, 0}, {0, 2}, {1, 1}, {1, 3}}));
}

TEST(MaskBuilders, TakeEvictionsOfEveryHead) {
  const Lengths evicted_at{4, 2, 3, 4, 1, 4, 4, 4};
  expect_same(make(flashmask_mask_random_eviction, 4, evicted_at.data(), 2), masks::random_eviction(4, evicted_at, 2));
}

TEST(MaskBuilders, SayWhereTheNodesOfATreeWent) {
  const Lengths parents{-1, 0, 0, 1};
  const Lengths lengths{3, 2, 2, 1};
  Lengths positions(4, -1);
  const auto expected = masks::tree(parents, lengths, 9);
  expect_same(make(flashmask_mask_tree, parents.data(), lengths.data(), 4, 9,
                   static_cast<std::int32_t>(FLASHMASK_TREE_DEPTH_FIRST), positions.data()),
              expected.mask);
  EXPECT_EQ(positions, expected.positions);
}

TEST(MaskBuilders, RefuseAnUnknownTreeOrder) {
  const Lengths parents{-1};
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_tree(parents.data(), parents.data(), 1, 9, 7, nullptr, &mask),
                 FLASHMASK_INVALID_ARGUMENT, "order is 7");
}

TEST(MaskBuilders, TakeWindowsThatAreDilatedOrHaveGlobalTokens) {
  const Lengths positions{8, 3};
  expect_same(make(flashmask_mask_dilated_window, 9, 12, 3, 1, 2), masks::dilated_window(9, 12, 3, 1, 2));
  expect_same(make(flashmask_mask_global_tokens, 12, positions.data(), 2, 2, 1),
              masks::global_tokens(12, positions, 2, 1));
}

TEST(MaskBuilders, TakeABigBird) {
  const flashmask_big_bird pattern{sizeof(flashmask_big_bird), 4, 1, 2, 3, 2, 9};
  expect_same(make(flashmask_mask_big_bird, 60, &pattern),
              masks::big_bird(
                  60, {.block = 4, .window_blocks = 1, .global_blocks = 2, .random_blocks = 3, .heads = 2, .seed = 9}));
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_big_bird(60, nullptr, &mask), FLASHMASK_INVALID_ARGUMENT, "pattern is NULL");
}

TEST(MaskBuilders, TakeTheAxesOfANeighbourhood) {
  const std::array<flashmask_neighbourhood_axis, 2> axes{
      {{sizeof(flashmask_neighbourhood_axis), 4, 3, 1}, {sizeof(flashmask_neighbourhood_axis), 10, 3, 2}}};
  expect_same(make(flashmask_mask_neighbourhood, axes.data(), 2), masks::neighbourhood_2d({4, 3}, {10, 3, 2}));
}

TEST(MaskBuilders, TakeFactorisedPatterns) {
  expect_same(make(flashmask_mask_strided_factorised, 20, 4), masks::strided_factorised(20, 4));
  expect_same(make(flashmask_mask_fixed_factorised, 20, 4, 1), masks::fixed_factorised(20, 4, 1));
}

TEST(MaskBuilders, TakeBucketsAndKeptTokensOfEveryHead) {
  const Lengths queries{0, 1, 1, 0, 0, 1};
  const Lengths keys{1, 0, 1, 1, 1, 0, 0, 0};
  expect_same(make(flashmask_mask_scfa_hash_sparse, queries.data(), keys.data(), 3, 4, 2),
              masks::scfa_hash_sparse(queries, keys, 2));
  const std::vector<std::uint8_t> kept_queries(queries.begin(), queries.end());
  const std::vector<std::uint8_t> kept_keys(keys.begin(), keys.end());
  expect_same(make(flashmask_mask_scfa_qk_sparse, kept_queries.data(), kept_keys.data(), 3, 4, 2),
              masks::scfa_qk_sparse(kept_queries, kept_keys, 2));
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_scfa_hash_sparse(nullptr, keys.data(), 3, 4, 2, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "query_buckets is NULL");
}

TEST(MaskBuilders, DropQueriesOfAMask) {
  const Lengths rows{1, 5};
  const MaskHandle causal = make(flashmask_mask_causal, 8, 8);
  expect_same(make(flashmask_mask_drop_queries, causal.get(), rows.data(), 2),
              masks::drop_queries(masks::causal(8, 8), rows));
}

TEST(Masks, AreSliced) {
  const MaskHandle causal = make(flashmask_mask_causal, 8, 8);
  const std::vector<flashmask_span> rows{{4, 8}}, columns{{6, 8}, {0, 3}};
  expect_same(make(flashmask_mask_slice, causal.get(), rows.data(), 1, columns.data(), 2),
              slice(masks::causal(8, 8), std::vector<Span>{{4, 8}}, std::vector<Span>{{6, 8}, {0, 3}}));
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_slice(causal.get(), rows.data(), 1, columns.data(), -1, &mask),
                 FLASHMASK_INVALID_ARGUMENT, "columns");
}

TEST(MaskBuilders, TakeSpeculationTrees) {
  const Lengths parents{-1, 0, 0, 1};
  const Lengths candidates{2, 3};
  constexpr std::int32_t ancestors = FLASHMASK_TREE_ANCESTORS;
  constexpr std::int32_t parent = FLASHMASK_TREE_PARENT;
  expect_same(make(flashmask_mask_tree_in_order, parents.data(), 4, 5, 3, ancestors),
              masks::tree_in_order(parents, 5, 3));
  expect_same(make(flashmask_mask_medusa_tree, candidates.data(), 2, 10, 0, parent),
              masks::medusa_tree(candidates, 10, 0, masks::TreeSight::parent));
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_tree_in_order(parents.data(), 4, 5, 3, 2, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "sight is 2");
}

TEST(MaskBuilders, TakeTheEdgesOfAGraph) {
  const std::array<flashmask_visible_pair, 2> given{{{0, 4}, {3, 1}}};
  const std::vector<VisiblePair> edges{{0, 4}, {3, 1}};
  expect_same(make(flashmask_mask_graph, 6, given.data(), 2, 1, 0), masks::graph(6, edges, {.symmetric = true}));
  expect_same(make(flashmask_mask_graph, 6, given.data(), 2, 0, 1), masks::graph(6, edges, {.self_loops = true}));
}

TEST(MaskBuilders, PassOnTheMessageOfTheLibraryAndLeaveTheResultAlone) {
  const Lengths documents{5, 6};
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_causal_document(documents.data(), 2, 10, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "causal_document");
  EXPECT_EQ(mask, nullptr);
}

TEST(MaskBuilders, RefuseNullAndNegativeCounts) {
  const Lengths documents{5};
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_causal(4, 4, nullptr), FLASHMASK_INVALID_ARGUMENT, "mask is NULL");
  expect_refused(flashmask_mask_document(nullptr, 1, 4, &mask), FLASHMASK_INVALID_ARGUMENT, "documents is NULL");
  expect_refused(flashmask_mask_document(documents.data(), -1, 4, &mask), FLASHMASK_INVALID_ARGUMENT,
                 "documents is -1");
}

TEST(MaskDense, ComesFromBytes) {
  const std::vector<std::uint8_t> visible{1, 0, 2, 1, 1, 0};
  const flashmask_mask_shape shape{1, 1, 2, 3};
  expect_same(make(flashmask_mask_from_dense, &shape, visible.data()), from_dense({1, 1, 2, 3}, visible));
}

TEST(MaskDense, RefusesSizesThatCannotBe) {
  const std::uint8_t byte = 1;
  flashmask_mask* mask = nullptr;
  const flashmask_mask_shape negative{1, 1, -2, 3};
  expect_refused(flashmask_mask_from_dense(&negative, &byte, &mask), FLASHMASK_INVALID_ARGUMENT, "-2");
  const flashmask_mask_shape huge{INT64_MAX, 2, 2, 2};
  expect_refused(flashmask_mask_from_dense(&huge, &byte, &mask), FLASHMASK_INVALID_ARGUMENT, "2^63");
  expect_refused(flashmask_mask_from_dense(nullptr, &byte, &mask), FLASHMASK_INVALID_ARGUMENT, "shape is NULL");
}

TEST(MaskIndices, MakeTheRoundTrip) {
  const std::vector<std::int32_t> values{3, 4, 5, 6, 6, 6};
  const flashmask_mask_shape shape{1, 1, 6, 6};
  const MaskHandle mask = make(flashmask_mask_from_startend_row_indices, values.data(), &shape, 1, 1);
  expect_same(mask, from_startend_row_indices(values, {1, 1, 6, 6}, 1, true));

  flashmask_startend_row_indices encoding = FLASHMASK_INIT(flashmask_startend_row_indices);
  ASSERT_EQ(flashmask_mask_to_startend_row_indices(mask.get(), nullptr, 0, &encoding), FLASHMASK_OK);
  EXPECT_EQ(encoding.vectors, 1);
  EXPECT_EQ(encoding.causal, 1);
  ASSERT_EQ(encoding.size, 6);
  std::vector<std::int32_t> exported(6);
  ASSERT_EQ(flashmask_mask_to_startend_row_indices(mask.get(), exported.data(), 6, &encoding), FLASHMASK_OK);
  EXPECT_EQ(exported, values);
}

TEST(MaskIndices, AreNotHalfWrittenToASmallBuffer) {
  const MaskHandle mask = make(flashmask_mask_causal, 6, 6);
  std::vector<std::int32_t> exported(5, -1);
  flashmask_startend_row_indices encoding = FLASHMASK_INIT(flashmask_startend_row_indices);
  expect_refused(flashmask_mask_to_startend_row_indices(mask.get(), exported.data(), 5, &encoding),
                 FLASHMASK_INVALID_ARGUMENT, "6 elements");
  EXPECT_EQ(exported, std::vector<std::int32_t>(5, -1));
  EXPECT_EQ(encoding.size, 0);
}

TEST(MaskIndices, RefuseWhatTwoRangesAColumnCannotSay) {
  flashmask_startend_row_indices encoding = FLASHMASK_INIT(flashmask_startend_row_indices);
  const MaskHandle dilated = make(flashmask_mask_dilated_window, 9, 9, 2, 1, 2);
  expect_refused(flashmask_mask_to_startend_row_indices(dilated.get(), nullptr, 0, &encoding), FLASHMASK_UNSUPPORTED,
                 "column 0");

  const flashmask_mask_shape shape{1, 1, 256, 256};
  const std::vector<std::uint8_t> keep{1, 0, 1, 1};
  const BlockMapHandle map = make_block_map(flashmask_block_map_create, &shape, 128, keep.data());
  const MaskHandle causal = make(flashmask_mask_causal, 256, 256);
  const MaskHandle both = make(flashmask_mask_and_block_map, causal.get(), map.get());
  expect_refused(flashmask_mask_to_startend_row_indices(both.get(), nullptr, 0, &encoding), FLASHMASK_UNSUPPORTED,
                 "block map");
}

TEST(MaskIndices, RefuseThreeVectors) {
  const std::vector<std::int32_t> values(18);
  const flashmask_mask_shape shape{1, 1, 6, 6};
  flashmask_mask* mask = nullptr;
  EXPECT_EQ(flashmask_mask_from_startend_row_indices(values.data(), &shape, 3, 1, &mask), FLASHMASK_INVALID_ARGUMENT);
}

TEST(MaskAlgebra, CombinesAndStacks) {
  const MaskHandle causal = make(flashmask_mask_causal, 8, 8);
  const MaskHandle window = make(flashmask_mask_window, 8, 8, 2, 2);
  const Mask a = masks::causal(8, 8);
  const Mask b = masks::window(8, 8, 2, 2);
  expect_same(make(flashmask_mask_and, causal.get(), window.get()), a & b);
  expect_same(make(flashmask_mask_or, causal.get(), window.get()), a | b);
  const std::array<const flashmask_mask*, 2> both{causal.get(), window.get()};
  expect_same(make(flashmask_mask_stack_batch, both.data(), 2), stack_batch(std::vector{a, b}));
  expect_same(make(flashmask_mask_stack_heads, both.data(), 2), stack_heads(std::vector{a, b}));
}

TEST(MaskAlgebra, RefusesNull) {
  const MaskHandle causal = make(flashmask_mask_causal, 8, 8);
  flashmask_mask* mask = nullptr;
  expect_refused(flashmask_mask_and(nullptr, causal.get(), &mask), FLASHMASK_INVALID_ARGUMENT, "a is NULL");
  expect_refused(flashmask_mask_or(causal.get(), nullptr, &mask), FLASHMASK_INVALID_ARGUMENT, "b is NULL");
  const std::array<const flashmask_mask*, 2> both{causal.get(), nullptr};
  expect_refused(flashmask_mask_stack_heads(both.data(), 2, &mask), FLASHMASK_INVALID_ARGUMENT, "masks[] is NULL");
  flashmask_mask_destroy(nullptr);
}

TEST(MaskQueries, GiveTheShape) {
  const MaskHandle mask = make(flashmask_mask_full, 5, 9);
  flashmask_mask_shape shape{};
  ASSERT_EQ(flashmask_mask_get_shape(mask.get(), &shape), FLASHMASK_OK);
  EXPECT_EQ(shape.batch, 1);
  EXPECT_EQ(shape.heads, 1);
  EXPECT_EQ(shape.rows, 5);
  EXPECT_EQ(shape.columns, 9);
}

TEST(MaskQueries, ExplainLikeTheLibrary) {
  const Lengths documents{20, 0, 33};
  const MaskHandle mask = make(flashmask_mask_causal_document, documents.data(), 3, 60);
  flashmask_explanation given = FLASHMASK_INIT(flashmask_explanation);
  ASSERT_EQ(flashmask_mask_explain(mask.get(), 16, 8, &given), FLASHMASK_OK) << flashmask_last_error();
  const Explanation expected = explain(masks::causal_document(documents, 60), {16, 8});
  EXPECT_EQ(given.form, FLASHMASK_INTERVALS);
  EXPECT_EQ(given.tile_rows, 16);
  EXPECT_EQ(given.tile_columns, 8);
  EXPECT_EQ(given.visible_pairs, 20 * 21 / 2 + 33 * 34 / 2);
  EXPECT_EQ(given.empty_rows, 7);
  EXPECT_EQ(std::vector(given.first_empty_rows, given.first_empty_rows + given.first_empty_row_count),
            (Lengths{53, 54, 55, 56, 57, 58, 59}));
  EXPECT_EQ((TileCounts{given.skipped_tiles, given.partial_tiles, given.full_tiles}), expected.tiles);
  EXPECT_EQ(given.density, expected.density);
  EXPECT_EQ(given.waste, expected.waste);
  EXPECT_EQ(given.mask_bytes, expected.mask_bytes);
  EXPECT_EQ(given.schedule_bytes, expected.schedule_bytes);
  EXPECT_EQ(given.dense_bytes, 60U * 60U);
}

TEST(MaskQueries, DrawIntoTheCallersBuffer) {
  const MaskHandle mask = make(flashmask_mask_causal, 4, 4);
  std::size_t size = 0;
  ASSERT_EQ(flashmask_mask_draw(mask.get(), nullptr, nullptr, 0, &size), FLASHMASK_OK) << flashmask_last_error();
  std::string text(size, '?');
  ASSERT_EQ(flashmask_mask_draw(mask.get(), nullptr, text.data(), size, &size), FLASHMASK_OK);
  EXPECT_EQ(text, draw(masks::causal(4, 4)) + '\0');
}

TEST(MaskQueries, LeaveASmallDrawingBufferAlone) {
  const MaskHandle mask = make(flashmask_mask_causal, 4, 4);
  std::string text(3, '?');
  std::size_t size = 0;
  expect_refused(flashmask_mask_draw(mask.get(), nullptr, text.data(), text.size(), &size), FLASHMASK_INVALID_ARGUMENT,
                 "capacity of 3");
  EXPECT_EQ(text, "???");
}

TEST(PackedMask, IsTheMaskAgain) {
  const Lengths documents{30, 40};
  const MaskHandle causal = make(flashmask_mask_causal_document, documents.data(), 2, 80);
  const MaskHandle dilated = make(flashmask_mask_dilated_window, 80, 80, 6, 6, 3);
  for (const MaskHandle* mask : {&causal, &dilated}) {
    std::int64_t size = 0;
    ASSERT_EQ(flashmask_mask_pack(mask->get(), nullptr, 0, &size), FLASHMASK_OK);
    std::vector<char> bytes(static_cast<std::size_t>(size));
    ASSERT_EQ(flashmask_mask_pack(mask->get(), bytes.data(), size, &size), FLASHMASK_OK) << flashmask_last_error();
    EXPECT_EQ(size, std::ssize(bytes));
    expect_same(make(flashmask_mask_unpack, bytes.data(), size), (*mask)->mask);
  }
}

TEST(PackedMask, LeavesASmallBufferAlone) {
  const MaskHandle mask = make(flashmask_mask_causal, 4, 4);
  std::string bytes(150, '?');
  std::int64_t size = -5;
  expect_refused(flashmask_mask_pack(mask.get(), bytes.data(), 150, &size), FLASHMASK_INVALID_ARGUMENT,
                 "buffer has a capacity of 150");
  EXPECT_EQ(bytes, std::string(150, '?'));
  EXPECT_EQ(size, -5);
  expect_refused(flashmask_mask_pack(mask.get(), nullptr, 9, &size), FLASHMASK_INVALID_ARGUMENT, "buffer is NULL");
  expect_refused(flashmask_mask_pack(mask.get(), nullptr, 0, nullptr), FLASHMASK_INVALID_ARGUMENT, "size is NULL");
  expect_refused(flashmask_mask_pack(nullptr, nullptr, 0, &size), FLASHMASK_INVALID_ARGUMENT, "mask is NULL");
}

TEST(PackedMask, RefusesBytesThatAreNone) {
  flashmask_mask* mask = nullptr;
  const std::string text(400, 'x');
  expect_refused(flashmask_mask_unpack(text.data(), 400, &mask), FLASHMASK_INVALID_ARGUMENT, "do not begin as");
  expect_refused(flashmask_mask_unpack(text.data(), 4, &mask), FLASHMASK_INVALID_ARGUMENT, "end inside the header");
  expect_refused(flashmask_mask_unpack(nullptr, 0, &mask), FLASHMASK_INVALID_ARGUMENT, "end inside the header");
  expect_refused(flashmask_mask_unpack(text.data(), -1, &mask), FLASHMASK_INVALID_ARGUMENT, "length of bytes is -1");
  expect_refused(flashmask_mask_unpack(nullptr, 7, &mask), FLASHMASK_INVALID_ARGUMENT, "bytes is NULL");
  EXPECT_EQ(mask, nullptr);
}

TEST(MaskQueries, RefuseNull) {
  const MaskHandle mask = make(flashmask_mask_causal, 4, 4);
  flashmask_explanation explanation = FLASHMASK_INIT(flashmask_explanation);
  flashmask_mask_shape shape{};
  flashmask_startend_row_indices encoding = FLASHMASK_INIT(flashmask_startend_row_indices);
  std::size_t size = 0;
  expect_refused(flashmask_mask_explain(nullptr, 16, 16, &explanation), FLASHMASK_INVALID_ARGUMENT, "mask is NULL");
  expect_refused(flashmask_mask_explain(mask.get(), 16, 16, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "explanation is NULL");
  expect_refused(flashmask_mask_get_shape(nullptr, &shape), FLASHMASK_INVALID_ARGUMENT, "mask is NULL");
  expect_refused(flashmask_mask_draw(nullptr, nullptr, nullptr, 0, &size), FLASHMASK_INVALID_ARGUMENT, "mask is NULL");
  expect_refused(flashmask_mask_draw(mask.get(), nullptr, nullptr, 0, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "size is NULL");
  expect_refused(flashmask_mask_draw(mask.get(), nullptr, nullptr, 9, &size), FLASHMASK_INVALID_ARGUMENT,
                 "buffer is NULL");
  expect_refused(flashmask_mask_to_startend_row_indices(nullptr, nullptr, 0, &encoding), FLASHMASK_INVALID_ARGUMENT,
                 "mask is NULL");
}

}  // namespace
}  // namespace flashmask::c_api
