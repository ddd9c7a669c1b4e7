// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "c_api/sized_struct.h"
#include "flashmask/slice.h"

namespace masks = flashmask::masks;
using flashmask::c_api::array;
using flashmask::c_api::element_count;
using flashmask::c_api::enumerator;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::read_struct;
using flashmask::c_api::read_structs;
using flashmask::c_api::require;

namespace {

/// Runs `build`, which returns a Mask, and hands it out as a handle.
template <typename Build>
flashmask_status hand_out(flashmask_mask** mask, Build&& build) noexcept {
  return guard([&] {
    require(mask, "mask");
    *mask = make_handle(build());
  });
}

std::optional<std::int64_t> limit(std::int64_t side) {
  return side == -1 ? std::nullopt : std::optional<std::int64_t>(side);
}

std::vector<flashmask::Span> to_spans(std::span<const flashmask_span> spans) {
  std::vector<flashmask::Span> result;
  result.reserve(spans.size());
  for (const flashmask_span& span : spans) result.push_back({span.begin, span.end});
  return result;
}

std::vector<masks::HashedToken> to_hashed_tokens(std::span<const flashmask_hashed_token> tokens) {
  std::vector<masks::HashedToken> result;
  result.reserve(tokens.size());
  for (const flashmask_hashed_token& token : tokens) result.push_back({token.bucket, token.position});
  return result;
}

masks::SharedQuestion to_shared_question(const flashmask_shared_question& document) {
  const auto answers = array(document.answers, document.answer_count, "documents[].answers");
  return {document.question, {answers.begin(), answers.end()}};
}

std::vector<masks::NeighbourhoodAxis> to_axes(std::span<const flashmask_neighbourhood_axis> axes) {
  std::vector<masks::NeighbourhoodAxis> result;
  result.reserve(axes.size());
  for (const flashmask_neighbourhood_axis& axis : axes) result.push_back({axis.length, axis.kernel, axis.dilation});
  return result;
}

/// The values of every head, [heads, tokens].
template <typename Value>
std::span<const Value> every_head(const Value* values, std::int64_t heads, std::int64_t tokens, const char* name) {
  return array(values, static_cast<std::int64_t>(element_count(std::array{heads, tokens}, name)), name);
}

masks::TreeSight to_sight(std::int32_t sight) { return enumerator(sight, masks::TreeSight::parent, "sight"); }

}  // namespace

flashmask_status flashmask_mask_full(int64_t rows, int64_t columns, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::full(rows, columns); });
}

flashmask_status flashmask_mask_causal(int64_t rows, int64_t columns, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::causal(rows, columns); });
}

flashmask_status flashmask_mask_sliding_window(int64_t rows, int64_t columns, int64_t window, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::sliding_window(rows, columns, window); });
}

flashmask_status flashmask_mask_window(int64_t rows, int64_t columns, int64_t left, int64_t right,
                                       flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::window(rows, columns, limit(left), limit(right)); });
}

flashmask_status flashmask_mask_causal_document(const int64_t* documents, int64_t count, int64_t tokens,
                                                flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::causal_document(array(documents, count, "documents"), tokens); });
}

flashmask_status flashmask_mask_causal_document_pairs(const int64_t* query_lengths, const int64_t* key_lengths,
                                                      int64_t count, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::causal_document(array(query_lengths, count, "query_lengths"),
                                  array(key_lengths, count, "key_lengths"));
  });
}

flashmask_status flashmask_mask_document(const int64_t* documents, int64_t count, int64_t tokens,
                                         flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::document(array(documents, count, "documents"), tokens); });
}

flashmask_status flashmask_mask_document_pairs(const int64_t* query_lengths, const int64_t* key_lengths, int64_t count,
                                               flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::document(array(query_lengths, count, "query_lengths"), array(key_lengths, count, "key_lengths"));
  });
}

flashmask_status flashmask_mask_sliding_window_document(const int64_t* documents, int64_t count, int64_t tokens,
                                                        int64_t window, flashmask_mask** mask) {
  return hand_out(mask,
                  [&] { return masks::sliding_window_document(array(documents, count, "documents"), tokens, window); });
}

flashmask_status flashmask_mask_shared_question(const flashmask_shared_question* documents, int64_t count,
                                                int64_t tokens, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    const auto given = read_structs(documents, count, "documents");
    std::vector<masks::SharedQuestion> converted(given.size());
    std::ranges::transform(given, converted.begin(), to_shared_question);
    return masks::shared_question(converted, tokens);
  });
}

flashmask_status flashmask_mask_global_sliding_window(int64_t tokens, int64_t globals, int64_t left, int64_t right,
                                                      flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::global_sliding_window(tokens, globals, left, right); });
}

flashmask_status flashmask_mask_causal_blockwise(const int64_t* documents, int64_t count, int64_t tokens,
                                                 flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::causal_blockwise(array(documents, count, "documents"), tokens); });
}

flashmask_status flashmask_mask_prefix_lm_document(const int64_t* documents, const int64_t* prefixes, int64_t count,
                                                   int64_t tokens, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::prefix_lm_document(array(documents, count, "documents"), array(prefixes, count, "prefixes"), tokens);
  });
}

flashmask_status flashmask_mask_prefix_lm_causal(int64_t tokens, int64_t prefix, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::prefix_lm_causal(tokens, prefix); });
}

flashmask_status flashmask_mask_qk_sparse_segments(int64_t tokens, const flashmask_span* dropped, int64_t count,
                                                   flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::qk_sparse_segments(tokens, to_spans(array(dropped, count, "dropped"))); });
}

flashmask_status flashmask_mask_hash_sparse_sorted(const flashmask_hashed_token* queries, int64_t query_count,
                                                   const flashmask_hashed_token* keys, int64_t key_count,
                                                   flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::hash_sparse_sorted(to_hashed_tokens(array(queries, query_count, "queries")),
                                     to_hashed_tokens(array(keys, key_count, "keys")));
  });
}

flashmask_status flashmask_mask_random_eviction(int64_t tokens, const int64_t* evicted_at, int64_t heads,
                                                flashmask_mask** mask) {
  return hand_out(mask, [&] {
    const std::size_t count = element_count(std::array{heads, tokens}, "evicted_at");
    return masks::random_eviction(tokens, array(evicted_at, static_cast<std::int64_t>(count), "evicted_at"), heads);
  });
}

flashmask_status flashmask_mask_tree(const int64_t* parents, const int64_t* lengths, int64_t count, int64_t tokens,
                                     int32_t order, int64_t* positions, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    auto tree = masks::tree(array(parents, count, "parents"), array(lengths, count, "lengths"), tokens,
                            enumerator(order, masks::TreeOrder::depth_first, "order"));
    if (positions != nullptr) std::ranges::copy(tree.positions, positions);
    return tree.mask;
  });
}

flashmask_status flashmask_mask_bidirectional_spans(int64_t tokens, const flashmask_span* spans, int64_t count,
                                                    flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::bidirectional_spans(tokens, to_spans(array(spans, count, "spans"))); });
}

flashmask_status flashmask_mask_block_diffusion(int64_t length, int64_t block, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::block_diffusion(length, block); });
}

flashmask_status flashmask_mask_dilated_window(int64_t rows, int64_t columns, int64_t left, int64_t right,
                                               int64_t dilation, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::dilated_window(rows, columns, left, right, dilation); });
}

flashmask_status flashmask_mask_global_tokens(int64_t tokens, const int64_t* positions, int64_t count, int64_t left,
                                              int64_t right, flashmask_mask** mask) {
  return hand_out(mask,
                  [&] { return masks::global_tokens(tokens, array(positions, count, "positions"), left, right); });
}

flashmask_status flashmask_mask_big_bird(int64_t tokens, const flashmask_big_bird* pattern, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    const flashmask_big_bird p = read_struct(pattern, "pattern");
    return masks::big_bird(tokens, {p.block, p.window_blocks, p.global_blocks, p.random_blocks, p.heads, p.seed});
  });
}

flashmask_status flashmask_mask_neighbourhood(const flashmask_neighbourhood_axis* axes, int64_t count,
                                              flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::neighbourhood(to_axes(read_structs(axes, count, "axes"))); });
}

flashmask_status flashmask_mask_strided_factorised(int64_t tokens, int64_t stride, flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::strided_factorised(tokens, stride); });
}

flashmask_status flashmask_mask_fixed_factorised(int64_t tokens, int64_t stride, int64_t summary,
                                                 flashmask_mask** mask) {
  return hand_out(mask, [&] { return masks::fixed_factorised(tokens, stride, summary); });
}

flashmask_status flashmask_mask_scfa_hash_sparse(const int64_t* query_buckets, const int64_t* key_buckets, int64_t rows,
                                                 int64_t columns, int64_t heads, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::scfa_hash_sparse(every_head(query_buckets, heads, rows, "query_buckets"),
                                   every_head(key_buckets, heads, columns, "key_buckets"), heads);
  });
}

flashmask_status flashmask_mask_scfa_qk_sparse(const uint8_t* kept_queries, const uint8_t* kept_keys, int64_t rows,
                                               int64_t columns, int64_t heads, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::scfa_qk_sparse(every_head(kept_queries, heads, rows, "kept_queries"),
                                 every_head(kept_keys, heads, columns, "kept_keys"), heads);
  });
}

flashmask_status flashmask_mask_drop_queries(const flashmask_mask* mask, const int64_t* rows, int64_t count,
                                             flashmask_mask** result) {
  return hand_out(result, [&] { return masks::drop_queries(require(mask, "mask").mask, array(rows, count, "rows")); });
}

flashmask_status flashmask_mask_slice(const flashmask_mask* mask, const flashmask_span* rows, int64_t row_spans,
                                      const flashmask_span* columns, int64_t column_spans, flashmask_mask** result) {
  return hand_out(result, [&] {
    return slice(require(mask, "mask").mask, to_spans(array(rows, row_spans, "rows")),
                 to_spans(array(columns, column_spans, "columns")));
  });
}

flashmask_status flashmask_mask_tree_in_order(const int64_t* parents, int64_t count, int64_t tokens, int64_t prefix,
                                              int32_t sight, flashmask_mask** mask) {
  return hand_out(
      mask, [&] { return masks::tree_in_order(array(parents, count, "parents"), tokens, prefix, to_sight(sight)); });
}

flashmask_status flashmask_mask_medusa_tree(const int64_t* candidates, int64_t count, int64_t tokens, int64_t prefix,
                                            int32_t sight, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    return masks::medusa_tree(array(candidates, count, "candidates"), tokens, prefix, to_sight(sight));
  });
}

flashmask_status flashmask_mask_graph(int64_t nodes, const flashmask_visible_pair* edges, int64_t count,
                                      int32_t symmetric, int32_t self_loops, flashmask_mask** mask) {
  return hand_out(mask, [&] {
    std::vector<flashmask::VisiblePair> pairs;
    for (const flashmask_visible_pair& edge : array(edges, count, "edges")) pairs.push_back({edge.row, edge.column});
    return masks::graph(nodes, pairs, {.symmetric = symmetric != 0, .self_loops = self_loops != 0});
  });
}

flashmask_status flashmask_mask_from_dense(const flashmask_mask_shape* shape, const uint8_t* visible,
                                           flashmask_mask** mask) {
  return hand_out(mask, [&] {
    const flashmask::MaskShape extent = flashmask::c_api::to_shape(shape);
    const std::array sizes = {extent.batch, extent.heads, extent.rows, extent.columns};
    const auto count = static_cast<std::int64_t>(element_count(sizes, "visible"));
    return flashmask::from_dense(extent, array(visible, count, "visible"));
  });
}
