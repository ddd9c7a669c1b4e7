// SPDX-License-Identifier: Apache-2.0
#include "kit/corpus.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"
#include "flashmask/startend_row_indices.h"

namespace flashmask::corpus {
namespace {

using masks::Span;

/// Documents of very different lengths, some empty, that fill seven eighths of the tokens; the rest is padding.
std::vector<std::int64_t> documents(std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  std::int64_t left = tokens - tokens / 8;
  for (std::int64_t k = 0; left > 0; ++k) {
    lengths.push_back(std::min(left, (k * k * 5 % 37) * (1 + tokens / 512)));
    left -= lengths.back();
  }
  return lengths;
}

/// Lengths from documents(), and a last document in place of the padding.
std::vector<std::int64_t> whole(std::int64_t tokens) {
  std::vector<std::int64_t> lengths = documents(tokens);
  lengths.push_back(tokens / 8);
  return lengths;
}

/// Lengths in proportion to weights; they add up to the total.
std::vector<std::int64_t> shares(std::int64_t total, const std::vector<std::int64_t>& weights) {
  const std::int64_t all = std::max<std::int64_t>(1, std::accumulate(weights.begin(), weights.end(), std::int64_t{0}));
  std::vector<std::int64_t> lengths;
  std::int64_t sum = 0;
  std::int64_t begin = 0;
  for (const std::int64_t weight : weights) {
    sum += weight;
    lengths.push_back(total * sum / all - begin);
    begin += lengths.back();
  }
  return lengths;
}

/// Five documents, one of them without queries and one without keys.
std::vector<std::int64_t> query_lengths(const Size& n) { return shares(n.rows, {3, 0, 1, 5, 2}); }
std::vector<std::int64_t> key_lengths(const Size& n) { return shares(n.columns, {1, 2, 4, 0, 3}); }

/// Prefixes of a third of each document.
std::vector<std::int64_t> prefixes(std::int64_t tokens) {
  std::vector<std::int64_t> lengths = documents(tokens);
  for (std::int64_t& length : lengths) length /= 3;
  return lengths;
}

std::vector<masks::SharedQuestion> questions(std::int64_t tokens) {
  std::vector<masks::SharedQuestion> all;
  for (const std::int64_t length : documents(tokens)) {
    const auto parts = shares(length, {4, 2, 3, 1});
    all.push_back({.question = parts[0], .answers = {parts.begin() + 1, parts.end()}});
  }
  return all;
}

/// Every third document as a span, the last one first.
std::vector<Span> spans(std::int64_t tokens) {
  std::vector<Span> all;
  std::int64_t begin = 0;
  std::int64_t k = 0;
  for (const std::int64_t length : documents(tokens)) {
    if (k++ % 3 == 1) all.push_back({begin, begin + length});
    begin += length;
  }
  std::reverse(all.begin(), all.end());
  return all;
}

/// A forest of two binary trees whose nodes are the documents, given breadth first.
Mask binary_trees(const Size& n) {
  const std::vector<std::int64_t> lengths = documents(n.rows);
  std::vector<std::int64_t> parents;
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(lengths.size()); ++k)
    parents.push_back(k < 2 ? -1 : k / 2 - 1);
  return masks::tree(parents, lengths, n.rows).mask;
}

std::int64_t draw_below(std::mt19937_64& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
}

/// Each head evicts its keys at random rows, and keeps some to the end.
Mask eviction(const Size& n) {
  std::mt19937_64 random(12);
  std::vector<std::int64_t> rows;
  for (std::int64_t head = 0; head < n.heads; ++head) {
    for (std::int64_t j = 0; j < n.columns; ++j) {
      rows.push_back(std::min(n.rows, j + 1 + draw_below(random, 3 * (n.rows - j))));
    }
  }
  return masks::random_eviction(n.rows, rows, n.heads);
}

/// Queries and keys fall at random into buckets; positions ascend within each.
Mask hashed(const Size& n) {
  const auto sorted = [](std::int64_t tokens, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<masks::HashedToken> all;
    for (std::int64_t p = 0; p < tokens; ++p) all.push_back({draw_below(random, 5), p});
    std::ranges::sort(all, {}, [](const auto& token) { return std::pair(token.bucket, token.position); });
    return all;
  };
  return masks::hash_sparse_sorted(sorted(n.rows, 1), sorted(n.columns, 2));
}

/// The two factors of the number of tokens that are closest to each other, the smaller first.
std::pair<std::int64_t, std::int64_t> factors(std::int64_t tokens) {
  std::int64_t smaller = 1;
  for (std::int64_t k = 2; k * k <= tokens; ++k) smaller = tokens % k == 0 ? k : smaller;
  return {smaller, tokens / smaller};
}

/// One axis of a grid: a token sees a third of it, every second token where it is long.
masks::NeighbourhoodAxis axis(std::int64_t length) {
  return {length, std::max<std::int64_t>(1, length / 3), length > 20 ? 2 : 1};
}

Mask plane(const Size& n) { return masks::neighbourhood_2d(axis(factors(n.rows).first), axis(factors(n.rows).second)); }

Mask volume(const Size& n) {
  const auto [depth, rest] = factors(n.rows);
  return masks::neighbourhood_3d({depth, std::min<std::int64_t>(depth, 2)}, axis(factors(rest).first),
                                 axis(factors(rest).second));
}

/// A random bucket for each token.
std::vector<std::int64_t> buckets(std::int64_t tokens, std::int64_t heads, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> all(static_cast<std::size_t>(heads * tokens));
  for (std::int64_t& bucket : all) bucket = draw_below(random, 5);
  return all;
}

Mask unsorted_buckets(const Size& n) {
  return masks::scfa_hash_sparse(buckets(n.rows, n.heads, 1), buckets(n.columns, n.heads, 2), n.heads);
}

/// Keeps four of five queries and keys.
Mask kept_tokens(const Size& n) {
  const auto queries = buckets(n.rows, n.heads, 3);
  const auto keys = buckets(n.columns, n.heads, 4);
  return masks::scfa_qk_sparse(std::vector<std::uint8_t>(queries.begin(), queries.end()),
                               std::vector<std::uint8_t>(keys.begin(), keys.end()), n.heads);
}

/// Drops every seventh row of a causal mask.
Mask dropped_rows(const Size& n) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 3; i < n.rows; i += 7) rows.push_back(i);
  return masks::drop_queries(masks::causal(n.rows, n.columns), rows);
}

/// The parent of every node is a random one of the eight before it; a few are roots; the last rows have no node.
Mask random_tree(const Size& n) {
  std::mt19937_64 random(7);
  std::vector<std::int64_t> parents;
  for (std::int64_t k = 0; k < n.rows - n.rows / 8; ++k) {
    parents.push_back(std::max<std::int64_t>(-1, k - 1 - draw_below(random, 8)));
  }
  return masks::tree_in_order(parents, n.rows);
}

/// Three candidates per MEDUSA head, with as many heads as fit the rows.
Mask medusa(const Size& n, masks::TreeSight sight) {
  std::vector<std::int64_t> heads;
  std::int64_t level = 3;
  for (std::int64_t left = n.rows; level <= left; level *= 3) {
    heads.push_back(3);
    left -= level;
  }
  return masks::medusa_tree(heads, n.rows, 0, sight);
}

/// Every node has two edges to random nodes.
Mask random_graph(const Size& n) {
  std::mt19937_64 random(6);
  std::vector<VisiblePair> edges;
  for (std::int64_t k = 0; k < 2 * n.rows; ++k) edges.push_back({k / 2, draw_below(random, n.rows)});
  return masks::graph(n.rows, edges, {.symmetric = true, .self_loops = true});
}

/// Random row indices: misordered, overlapping, negative and beyond the rows.
Mask random_indices(const Size& n, int vectors, bool causal, std::int64_t heads) {
  std::mt19937_64 random(static_cast<std::uint64_t>(4 + vectors));
  std::vector<std::int32_t> values(static_cast<std::size_t>(heads * n.columns * vectors));
  for (std::int32_t& value : values) value = static_cast<std::int32_t>(draw_below(random, 2 * n.rows + 1) - n.rows / 2);
  return from_startend_row_indices(values, {.batch = 1, .heads = heads, .rows = n.rows, .columns = n.columns}, vectors,
                                   causal);
}

/// Masks the rows [begin, end) in every column.
Mask hidden_rows(const Size& n, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> values;
  for (std::int64_t j = 0; j < n.columns; ++j) {
    values.insert(values.end(), {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), 0, 0});
  }
  return from_startend_row_indices(values, {.batch = 1, .heads = 1, .rows = n.rows, .columns = n.columns}, 4, false);
}

/// Gives every head a window of its own.
Mask head_windows(const Size& n) {
  std::vector<Mask> heads;
  for (std::int64_t h = 1; h <= n.heads; ++h) heads.push_back(masks::sliding_window(n.rows, n.columns, 7 * h));
  return stack_heads(heads);
}

/// Shapes of block maps with one mask head, or with all.
MaskShape one_head(const Size& n) { return {.batch = 1, .heads = 1, .rows = n.rows, .columns = n.columns}; }
MaskShape each_head(const Size& n) { return {.batch = 1, .heads = n.heads, .rows = n.rows, .columns = n.columns}; }

/// Keeps half of the blocks of every row, by scores that repeat.
BlockMap best_blocks(const Size& n, std::int64_t block) {
  const std::int64_t columns = (n.columns + block - 1) / block;
  std::vector<float> scores(static_cast<std::size_t>(n.heads * ((n.rows + block - 1) / block) * columns));
  for (std::size_t k = 0; k < scores.size(); ++k) scores[k] = static_cast<float>(k * 7 % 11);
  return block_maps::best(each_head(n), block, scores, (columns + 1) / 2);
}

std::int64_t fifth(const Size& n) { return n.columns / 5 + 1; }

using N = const Size&;

std::vector<Entry> make_entries() {
  using enum Fits;
  using namespace masks;  // one line per mask
  return {
      {"full", any_size, [](N n) { return full(n.rows, n.columns); }},
      {"causal", any_size, [](N n) { return causal(n.rows, n.columns); }},
      {"sliding_window", any_size, [](N n) { return sliding_window(n.rows, n.columns, fifth(n)); }},
      {"window_both_ways", any_size, [](N n) { return window(n.rows, n.columns, fifth(n), fifth(n) / 2); }},
      {"window_open_left", any_size, [](N n) { return window(n.rows, n.columns, {}, fifth(n)); }},
      {"causal_document", square, [](N n) { return causal_document(documents(n.rows), n.rows); }},
      {"causal_document_two_lengths", any_size, [](N n) { return causal_document(query_lengths(n), key_lengths(n)); }},
      {"document", square, [](N n) { return document(documents(n.rows), n.rows); }},
      {"document_two_lengths", any_size, [](N n) { return document(query_lengths(n), key_lengths(n)); }},
      {"sliding_window_document", square, [](N n) { return sliding_window_document(documents(n.rows), n.rows, 11); }},
      {"shared_question", square, [](N n) { return shared_question(questions(n.rows), n.rows); }},
      {"global_window", square, [](N n) { return global_sliding_window(n.rows, n.rows / 9, fifth(n), fifth(n) / 3); }},
      {"causal_blockwise", square, [](N n) { return causal_blockwise(whole(n.rows), n.rows); }},
      {"prefix_document", square, [](N n) { return prefix_lm_document(documents(n.rows), prefixes(n.rows), n.rows); }},
      {"prefix_lm_causal", square, [](N n) { return prefix_lm_causal(n.rows, n.rows / 2); }},
      {"qk_sparse_segments", square, [](N n) { return qk_sparse_segments(n.rows, spans(n.rows)); }},
      {"hash_sparse_sorted", any_size, hashed},
      {"random_eviction", square, eviction},
      {"tree", square, binary_trees},
      {"bidirectional_spans", square, [](N n) { return bidirectional_spans(n.rows, spans(n.rows)); }},
      {"block_diffusion", even_square, [](N n) { return block_diffusion(n.rows / 2, 13); }},
      {"window_document", square, [](N n) { return window(n.rows, n.rows, 9, 4) & document(whole(n.rows), n.rows); }},
      {"causal_or_document", square, [](N n) { return causal(n.rows, n.rows) | document(whole(n.rows), n.rows); }},
      {"dilated_window", any_size, [](N n) { return dilated_window(n.rows, n.columns, 4, 6, 3); }},
      {"global_tokens", square,
       [](N n) {
         return global_tokens(n.rows, std::vector{n.rows - 1, n.rows / 2, n.rows / 5}, 4, 2);
       }},
      {"big_bird", square, [](N n) { return big_bird(n.rows, {.block = 24, .random_blocks = 1, .heads = n.heads}); }},
      {"neighbourhood_2d", square, plane},
      {"neighbourhood_3d", square, volume},
      {"strided_factorised", square, [](N n) { return strided_factorised(n.rows, fifth(n)); }},
      {"fixed_factorised", square, [](N n) { return fixed_factorised(n.rows, fifth(n), 1); }},
      {"scfa_hash_sparse", any_size, unsorted_buckets},
      {"scfa_qk_sparse", any_size, kept_tokens},
      {"drop_queries", any_size, dropped_rows},
      {"tree_in_order", square, random_tree},
      {"medusa_tree", square, [](N n) { return medusa(n, TreeSight::ancestors); }},
      {"medusa_parents", square, [](N n) { return medusa(n, TreeSight::parent); }},
      {"graph", square, random_graph},
      {"block_butterfly", any_size, [](N n) { return from_block_map(block_maps::butterfly(one_head(n), 16)); }},
      {"block_strided", any_size,
       [](N n) { return causal(n.rows, n.columns) & block_maps::strided(one_head(n), 16, 3); }},
      {"block_sliding", any_size,
       [](N n) { return window(n.rows, n.columns, 90, 60) & block_maps::sliding(one_head(n), 128, 1, 0); }},
      {"block_random", any_size, [](N n) { return from_block_map(block_maps::random(each_head(n), 128, 1, 1)); }},
      {"block_best", square, [](N n) { return document(documents(n.rows), n.rows) & best_blocks(n, 64); }},
      {"random_intervals", any_size, [](N n) { return random_indices(n, 4, false, 1); }},
      {"random_intervals_per_head", any_size, [](N n) { return random_indices(n, 4, false, n.heads); }},
      {"random_causal_ranges", any_size, [](N n) { return random_indices(n, 2, true, 1); }},
      {"random_two_ends", any_size, [](N n) { return random_indices(n, 2, false, 1); }},
      {"head_windows", any_size, head_windows},
      {"empty_rows", any_size, [](N n) { return hidden_rows(n, n.rows / 3, 2 * n.rows / 3); }},
      {"nothing_visible", any_size, [](N n) { return hidden_rows(n, 0, n.rows); }},
  };
}

}  // namespace

bool Entry::accepts(const Size& size) const {
  if (fits == Fits::any_size) return true;
  return size.rows == size.columns && (fits == Fits::square || size.rows % 2 == 0);
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = make_entries();
  return all;
}

const std::vector<Size>& awkward_sizes() {
  static const std::vector<Size> all = {{1, 1},   {1, 70},    {70, 1},    {63, 65},   {64, 64},   {65, 63},
                                        {97, 97}, {130, 130}, {128, 200}, {200, 128}, {239, 239}, {257, 257}};
  return all;
}

std::string Case::name() const {
  return entry->name + " " + std::to_string(size.rows) + "x" + std::to_string(size.columns);
}

std::vector<Case> cases(std::int64_t heads) {
  std::vector<Case> all;
  for (const Entry& entry : entries()) {
    for (const Size& size : awkward_sizes()) {
      if (entry.accepts(size)) all.push_back({&entry, {size.rows, size.columns, heads}});
    }
  }
  return all;
}

}  // namespace flashmask::corpus
