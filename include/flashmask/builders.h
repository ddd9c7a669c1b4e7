#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"

/// Builders take the numbers a person has (lengths, windows, parents) and give a Mask. Lengths are in tokens.
/// `tokens` is the sequence length; what lies past the documents is padding: nobody sees it and it sees nothing.
/// Every builder throws Status::invalid_argument on numbers that contradict each other. Families are numbered as in
/// docs/masks.md.
namespace flashmask::masks {

using Lengths = std::span<const std::int64_t>;

/// 0: every row sees every column.
FLASHMASK_API Mask full(std::int64_t rows, std::int64_t columns);

/// 1: row i sees column j when j <= i + columns - rows (bottom-right aligned).
FLASHMASK_API Mask causal(std::int64_t rows, std::int64_t columns);

/// 2: causal, each row sees its last `window` columns, itself included. `window` >= 1.
FLASHMASK_API Mask sliding_window(std::int64_t rows, std::int64_t columns, std::int64_t window);

/// `left` and `right` columns on either side of self (bottom-right aligned); nothing = no limit on that side.
FLASHMASK_API Mask window(std::int64_t rows, std::int64_t columns, std::optional<std::int64_t> left,
                          std::optional<std::int64_t> right);

/// 3: each document is causal and sees itself only.
FLASHMASK_API Mask causal_document(Lengths documents, std::int64_t tokens);

/// 3 with different query and key lengths: document k has query_lengths[k] rows and key_lengths[k] columns.
FLASHMASK_API Mask causal_document(Lengths query_lengths, Lengths key_lengths);

/// 4: each document sees itself only, both ways.
FLASHMASK_API Mask document(Lengths documents, std::int64_t tokens);
FLASHMASK_API Mask document(Lengths query_lengths, Lengths key_lengths);

/// Sliding window inside each causal document.
FLASHMASK_API Mask sliding_window_document(Lengths documents, std::int64_t tokens, std::int64_t window);

/// One prompt and the answers that share it (DPO has 2, a reward model up to 6, GRPO any number).
struct SharedQuestion {
  std::int64_t question = 0;
  std::vector<std::int64_t> answers;
};

/// 5: an answer sees its question and itself, causally; answers do not see each other.
FLASHMASK_API Mask shared_question(std::span<const SharedQuestion> documents, std::int64_t tokens);

/// 6: the first `globals` tokens see and are seen by all; others see `left` and `right` neighbours.
FLASHMASK_API Mask global_sliding_window(std::int64_t tokens, std::int64_t globals, std::int64_t left,
                                         std::int64_t right);

/// 7: causal documents, the last of which sees all before it.
FLASHMASK_API Mask causal_blockwise(Lengths documents, std::int64_t tokens);

/// 8: each document sees its prefix both ways and the rest causally. One prefix a document, at most its length.
FLASHMASK_API Mask prefix_lm_document(Lengths documents, Lengths prefixes, std::int64_t tokens);

/// 9: one sequence whose first `prefix` tokens are visible to all.
FLASHMASK_API Mask prefix_lm_causal(std::int64_t tokens, std::int64_t prefix);

/// Half-open range of tokens.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// 10: causal, without the scores inside dropped segments: their tokens see what lies before the segment only, and
/// later tokens see them. Segments are disjoint, in any order.
FLASHMASK_API Mask qk_sparse_segments(std::int64_t tokens, std::span<const Span> dropped);

/// 11: queries and keys sorted by bucket, then position; a row sees the keys of its bucket at positions not after its
/// own. Each list holds (bucket, position) in that order.
struct HashedToken {
  std::int64_t bucket = 0;
  std::int64_t position = 0;
};
FLASHMASK_API Mask hash_sparse_sorted(std::span<const HashedToken> queries, std::span<const HashedToken> keys);

/// 12: causal; column j is dropped from row evicted_at[head][column] on (`tokens` = never).
FLASHMASK_API Mask random_eviction(std::int64_t tokens, std::span<const std::int64_t> evicted_at, std::int64_t heads);

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
FLASHMASK_API TreeMask tree(std::span<const std::int64_t> parents, Lengths lengths, std::int64_t tokens,
                            TreeOrder order = TreeOrder::depth_first);

/// Causal text with spans (images) that see themselves both ways.
FLASHMASK_API Mask bidirectional_spans(std::int64_t tokens, std::span<const Span> spans);

/// Block diffusion of one sample, laid out [x_t | x_0], 2 * length tokens: a noisy block sees itself and the clean
/// blocks before it; a clean block sees the clean blocks up to and including itself.
FLASHMASK_API Mask block_diffusion(std::int64_t length, std::int64_t block);

}  // namespace flashmask::masks
