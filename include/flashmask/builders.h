// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "flashmask/elements.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/span.h"

/// Builders take the numbers a user has (lengths, windows, parents) and return a Mask. Lengths are in tokens. Lists of
/// numbers are given as a vector, a span or in braces: causal_document({600, 300}, 1024).
/// `tokens` is the sequence length; tokens past the documents are padding: they see nothing and no row sees them.
/// Every builder throws Status::invalid_argument on numbers that contradict each other. Families are numbered as in
/// docs/masks.md.
namespace flashmask::masks {

using Lengths = Elements<std::int64_t>;

/// 0: every row sees every column.
FLASHMASK_API Mask full(std::int64_t rows, std::int64_t columns);

/// 1: row i sees column j when j <= i + columns - rows (bottom-right aligned).
FLASHMASK_API Mask causal(std::int64_t rows, std::int64_t columns);

/// 2: causal, each row sees its last `window` columns, itself included. `window` >= 1.
FLASHMASK_API Mask sliding_window(std::int64_t rows, std::int64_t columns, std::int64_t window);

/// Each row sees itself, `left` columns before it and `right` after it (bottom-right aligned); nullopt: no limit on
/// that side.
FLASHMASK_API Mask window(std::int64_t rows, std::int64_t columns, std::optional<std::int64_t> left,
                          std::optional<std::int64_t> right);

/// 3: each document is causal and sees itself only.
FLASHMASK_API Mask causal_document(Lengths documents, std::int64_t tokens);

/// 3 with different query and key lengths: document k has query_lengths[k] rows and key_lengths[k] columns.
FLASHMASK_API Mask causal_document(Lengths query_lengths, Lengths key_lengths);
/// {10} is the lengths of one document, not a number of tokens.
inline Mask causal_document(Lengths query_lengths, std::initializer_list<std::int64_t> key_lengths) {
  return causal_document(query_lengths, Lengths(key_lengths));
}

/// 4: each document sees itself only, both ways.
FLASHMASK_API Mask document(Lengths documents, std::int64_t tokens);
FLASHMASK_API Mask document(Lengths query_lengths, Lengths key_lengths);
inline Mask document(Lengths query_lengths, std::initializer_list<std::int64_t> key_lengths) {
  return document(query_lengths, Lengths(key_lengths));
}

/// Sliding window inside each causal document.
FLASHMASK_API Mask sliding_window_document(Lengths documents, std::int64_t tokens, std::int64_t window);

/// One prompt and the answers that share it (DPO has 2, a reward model up to 6, GRPO any number).
struct SharedQuestion {
  std::int64_t question = 0;
  std::vector<std::int64_t> answers;
};

/// 5: an answer sees its question and itself, causally; answers do not see each other.
FLASHMASK_API Mask shared_question(Elements<SharedQuestion> documents, std::int64_t tokens);

/// 6: the first `globals` tokens see and are seen by all; others see `left` and `right` neighbours.
FLASHMASK_API Mask global_sliding_window(std::int64_t tokens, std::int64_t globals, std::int64_t left,
                                         std::int64_t right);

/// 7: causal documents, the last of which sees all before it.
FLASHMASK_API Mask causal_blockwise(Lengths documents, std::int64_t tokens);

/// 8: each document sees its prefix both ways and the rest causally. One prefix per document, at most its length.
FLASHMASK_API Mask prefix_lm_document(Lengths documents, Lengths prefixes, std::int64_t tokens);

/// 9: one sequence whose first `prefix` tokens are visible to all.
FLASHMASK_API Mask prefix_lm_causal(std::int64_t tokens, std::int64_t prefix);

using flashmask::Span;

/// 10: causal, without the scores inside dropped segments: a segment's tokens see only what lies before the segment,
/// and later tokens see them. Segments are disjoint, in any order.
FLASHMASK_API Mask qk_sparse_segments(std::int64_t tokens, Elements<Span> dropped);

/// 11: queries and keys sorted by bucket, then position; a row sees the keys of its bucket at positions not after its
/// own.
struct HashedToken {
  std::int64_t bucket = 0;
  std::int64_t position = 0;
};
FLASHMASK_API Mask hash_sparse_sorted(Elements<HashedToken> queries, Elements<HashedToken> keys);

/// 12: causal; column j is masked from row evicted_at[head][j] on (`tokens`: never). evicted_at is [heads, tokens].
FLASHMASK_API Mask random_eviction(std::int64_t tokens, Elements<std::int64_t> evicted_at, std::int64_t heads);

/// A forest: node k has lengths[k] tokens and the parent parents[k] (−1: a root); it sees its ancestors and itself,
/// causally. `order` is the order of the nodes in the sequence.
enum class TreeOrder : std::uint8_t {
  as_given,     ///< nodes in the order of the arrays: parents before children, each subtree contiguous, else an error
  depth_first,  ///< nodes are laid out depth-first; `positions` says where each went
};
struct TreeMask {
  Mask mask;
  std::vector<std::int64_t> positions;  ///< first token of each given node in the sequence
};
FLASHMASK_API TreeMask tree(Elements<std::int64_t> parents, Lengths lengths, std::int64_t tokens,
                            TreeOrder order = TreeOrder::depth_first);

/// Causal text with spans (images) that see themselves both ways.
FLASHMASK_API Mask bidirectional_spans(std::int64_t tokens, Elements<Span> spans);

/// Block diffusion of one sample, laid out [x_t | x_0], 2 * length tokens: a noisy block sees itself and the clean
/// blocks before it; a clean block sees the clean blocks up to and including itself.
FLASHMASK_API Mask block_diffusion(std::int64_t length, std::int64_t block);

/// Longformer's dilated window: `left` and `right` columns on either side of self (bottom-right aligned), `dilation`
/// apart. A dilation of 1 is window().
FLASHMASK_API Mask dilated_window(std::int64_t rows, std::int64_t columns, std::int64_t left, std::int64_t right,
                                  std::int64_t dilation);

/// Longformer's global attention: the tokens at `positions`, anywhere and in any order, see and are seen by all; others
/// see `left` and `right` neighbours.
FLASHMASK_API Mask global_tokens(std::int64_t tokens, Elements<std::int64_t> positions, std::int64_t left,
                                 std::int64_t right);

/// The pattern of BigBird: what a block of tokens sees.
struct BigBird {
  std::int64_t block = 64;         ///< tokens per block
  std::int64_t window_blocks = 1;  ///< blocks on either side of its own
  std::int64_t global_blocks = 2;  ///< the first blocks, which see and are seen by all
  std::int64_t random_blocks = 3;  ///< others, drawn without repetition; fewer where fewer remain
  std::int64_t heads = 1;          ///< mask heads, each with random blocks of its own
  std::uint64_t seed = 0;          ///< the same blocks on every platform
};
FLASHMASK_API Mask big_bird(std::int64_t tokens, const BigBird& pattern = {});

/// One axis of a grid of tokens. Along it a token sees the `kernel` nearest tokens of its own residue modulo
/// `dilation`; at a border the window shifts inwards and keeps its size.
struct NeighbourhoodAxis {
  std::int64_t length = 0;
  std::int64_t kernel = 1;  ///< kernel · dilation <= length; an even kernel reaches further to the left
  std::int64_t dilation = 1;
};

/// Neighbourhood attention (NATTEN) over any number of axes, the last of which runs fastest through the sequence.
FLASHMASK_API Mask neighbourhood(Elements<NeighbourhoodAxis> axes);
FLASHMASK_API Mask neighbourhood_2d(const NeighbourhoodAxis& height, const NeighbourhoodAxis& width);
FLASHMASK_API Mask neighbourhood_3d(const NeighbourhoodAxis& depth, const NeighbourhoodAxis& height,
                                    const NeighbourhoodAxis& width);

/// Sparse Transformer, strided: causal; a row sees itself, the `stride` columns before it and every stride-th column
/// before those. The two factors in one mask.
FLASHMASK_API Mask strided_factorised(std::int64_t tokens, std::int64_t stride);

/// Sparse Transformer, fixed: causal; a row sees the columns of its own block of `stride` and the last `summary`
/// columns of every block. The two factors in one mask.
FLASHMASK_API Mask fixed_factorised(std::int64_t tokens, std::int64_t stride, std::int64_t summary);

/// SCFA's hash-sparse attention in the original order of the tokens: a row sees the keys of its bucket at positions not
/// after its own (bottom-right aligned). The buckets are [heads, rows] and [heads, columns].
FLASHMASK_API Mask scfa_hash_sparse(Elements<std::int64_t> query_buckets, Elements<std::int64_t> key_buckets,
                                    std::int64_t heads);

/// SCFA's QK-sparse attention in the original order of the tokens: causal among what is kept (bottom-right aligned). A
/// dropped query sees nothing, and no query sees a dropped key. kept_queries is [heads, rows], kept_keys [heads,
/// columns]; nonzero = kept.
FLASHMASK_API Mask scfa_qk_sparse(Elements<std::uint8_t> kept_queries, Elements<std::uint8_t> kept_keys,
                                  std::int64_t heads);

/// Drops the given rows from the mask: they then see nothing.
FLASHMASK_API Mask drop_queries(const Mask& mask, Elements<std::int64_t> rows);

/// What a node of a speculation tree sees besides itself.
enum class TreeSight : std::uint8_t {
  ancestors,
  parent,  ///< the parent only, as in the mask generator published with Binary Block Masking
};

/// A forest of one token per node in the order of the array, which lists parents first: parents[k] is an earlier node
/// or −1 for a root. All nodes see the `prefix` columns before them (the cache); the rest of `tokens` is padding.
/// The mask has `tokens` rows and prefix + tokens columns.
FLASHMASK_API Mask tree_in_order(Elements<std::int64_t> parents, std::int64_t tokens, std::int64_t prefix = 0,
                                 TreeSight sight = TreeSight::ancestors);

/// MEDUSA's tree, breadth first: candidates[0] roots, and candidates[k] children for each node of level k − 1.
/// medusa_parents() returns its ∑ₖ∏ᵢ candidates[i] parents, for tree_in_order().
FLASHMASK_API std::vector<std::int64_t> medusa_parents(Elements<std::int64_t> candidates);
FLASHMASK_API Mask medusa_tree(Elements<std::int64_t> candidates, std::int64_t tokens, std::int64_t prefix = 0,
                               TreeSight sight = TreeSight::ancestors);

/// How the edges of a graph are read.
struct GraphEdges {
  bool symmetric = false;   ///< an edge (u, v) also lets row v see column u
  bool self_loops = false;  ///< every node sees itself
};

/// Attention over a graph: row u sees column v for each edge (u, v), in any order; repeated edges count once.
FLASHMASK_API Mask graph(std::int64_t nodes, Elements<VisiblePair> edges, const GraphEdges& meaning = {});

}  // namespace flashmask::masks
