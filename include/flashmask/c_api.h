// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "flashmask/export.h"
#include "flashmask/version.h"

/// The whole C ABI (C11). Every function that can fail returns a status and writes its result through the last
/// pointer; on failure nothing is written there and flashmask_last_error() says what was given, what was expected and
/// what to do. No C++ exception crosses these functions. Masks and plans are immutable: any number of threads may use
/// one at the same time. Arrays are copied before a call returns.
///
/// Structs begin with their size, so that programs and libraries of different versions work together:
///
///     flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);  // its size, and zeros
///     flashmask_problem problem = {.struct_size = sizeof(problem), .batch = 2, …};
///
/// New fields come at the end, and 0 in them keeps the earlier behaviour. The library reads a struct that is shorter
/// than its own as if zeros followed, accepts a longer one as long as the bytes it does not know are 0, and writes no
/// more of a result than the caller's struct holds. All elements of an array must have the same size. Five structs have
/// no size field and never change, because they lie inside others or in long arrays: flashmask_tensor,
/// flashmask_mask_shape, flashmask_span, flashmask_hashed_token and flashmask_visible_pair.

/// A struct with its size set and zeros elsewhere: an initialiser in C, a value in C++.
#ifdef __cplusplus
template <typename Struct>
inline Struct flashmask_init() {
  Struct made = {};
  made.struct_size = sizeof(Struct);
  return made;
}
#define FLASHMASK_INIT(type) flashmask_init<type>()
#else
#define FLASHMASK_INIT(type) \
  { .struct_size = sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum flashmask_status {
  FLASHMASK_OK = 0,
  FLASHMASK_INVALID_ARGUMENT = 1,  ///< a size, dtype, stride, ratio or value that the call does not accept
  FLASHMASK_UNSUPPORTED = 2,       ///< a legal request that no kernel or form of this build serves
  FLASHMASK_OUT_OF_MEMORY = 3,
  FLASHMASK_IO = 4,
  FLASHMASK_INTERNAL = 5
} flashmask_status;

/// Message of the last call that failed on this thread; "" when none has. Valid until the next failure on this thread.
FLASHMASK_API const char* flashmask_last_error(void);

/// Version of the loaded library, such as "0.1.0"; FLASHMASK_VERSION_MAJOR, _MINOR and _PATCH are the header's.
FLASHMASK_API const char* flashmask_version(void);

/// Layout of the structs in this library, for callers that do not compile this header: one line per struct with its
/// name and size, then name:offset:size of every field, such as "flashmask_span 16 begin:0:8 end:8:8". The text lives
/// as long as the process.
FLASHMASK_API flashmask_status flashmask_struct_layouts(const char** text);

/// Sets how many threads the library's own pool uses from the next call on; 0 restores the automatic choice.
FLASHMASK_API flashmask_status flashmask_set_thread_count(int threads);

/* ---- Masks -------------------------------------------------------------------------------------------------- */

/// A mask: which query row sees which key column.
typedef struct flashmask_mask flashmask_mask;

typedef struct flashmask_mask_shape {
  int64_t batch;    ///< 1 is shared by every batch entry
  int64_t heads;    ///< 1, the number of key heads or of query heads
  int64_t rows;     ///< query length
  int64_t columns;  ///< key length
} flashmask_mask_shape;

/// Destroying NULL is legal.
FLASHMASK_API void flashmask_mask_destroy(flashmask_mask* mask);

/// The builders of flashmask/builders.h, where each family is described. Lengths and positions are in tokens.
/// A pointer to an empty array may be NULL.
FLASHMASK_API flashmask_status flashmask_mask_full(int64_t rows, int64_t columns, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_causal(int64_t rows, int64_t columns, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_sliding_window(int64_t rows, int64_t columns, int64_t window,
                                                             flashmask_mask** mask);
/// −1: no limit on that side.
FLASHMASK_API flashmask_status flashmask_mask_window(int64_t rows, int64_t columns, int64_t left, int64_t right,
                                                     flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_causal_document(const int64_t* documents, int64_t count, int64_t tokens,
                                                              flashmask_mask** mask);
/// Document k has query_lengths[k] rows and key_lengths[k] columns.
FLASHMASK_API flashmask_status flashmask_mask_causal_document_pairs(const int64_t* query_lengths,
                                                                    const int64_t* key_lengths, int64_t count,
                                                                    flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_document(const int64_t* documents, int64_t count, int64_t tokens,
                                                       flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_document_pairs(const int64_t* query_lengths, const int64_t* key_lengths,
                                                             int64_t count, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_sliding_window_document(const int64_t* documents, int64_t count,
                                                                      int64_t tokens, int64_t window,
                                                                      flashmask_mask** mask);

/// One prompt and the answers that share it.
typedef struct flashmask_shared_question {
  uint64_t struct_size;
  int64_t question;
  const int64_t* answers;
  int64_t answer_count;
} flashmask_shared_question;

FLASHMASK_API flashmask_status flashmask_mask_shared_question(const flashmask_shared_question* documents, int64_t count,
                                                              int64_t tokens, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_global_sliding_window(int64_t tokens, int64_t globals, int64_t left,
                                                                    int64_t right, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_causal_blockwise(const int64_t* documents, int64_t count, int64_t tokens,
                                                               flashmask_mask** mask);
/// documents, prefixes [count]: one prefix per document.
FLASHMASK_API flashmask_status flashmask_mask_prefix_lm_document(const int64_t* documents, const int64_t* prefixes,
                                                                 int64_t count, int64_t tokens, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_prefix_lm_causal(int64_t tokens, int64_t prefix, flashmask_mask** mask);

/// Half-open range of tokens.
typedef struct flashmask_span {
  int64_t begin;
  int64_t end;
} flashmask_span;

FLASHMASK_API flashmask_status flashmask_mask_qk_sparse_segments(int64_t tokens, const flashmask_span* dropped,
                                                                 int64_t count, flashmask_mask** mask);

typedef struct flashmask_hashed_token {
  int64_t bucket;
  int64_t position;
} flashmask_hashed_token;

FLASHMASK_API flashmask_status flashmask_mask_hash_sparse_sorted(const flashmask_hashed_token* queries,
                                                                 int64_t query_count,
                                                                 const flashmask_hashed_token* keys, int64_t key_count,
                                                                 flashmask_mask** mask);
/// evicted_at [heads, tokens].
FLASHMASK_API flashmask_status flashmask_mask_random_eviction(int64_t tokens, const int64_t* evicted_at, int64_t heads,
                                                              flashmask_mask** mask);

enum flashmask_tree_order { FLASHMASK_TREE_AS_GIVEN = 0, FLASHMASK_TREE_DEPTH_FIRST = 1 };

/// parents, lengths [count]. `positions` [count] receives the first token of each node in the sequence; may be NULL.
FLASHMASK_API flashmask_status flashmask_mask_tree(const int64_t* parents, const int64_t* lengths, int64_t count,
                                                   int64_t tokens, int32_t order, int64_t* positions,
                                                   flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_bidirectional_spans(int64_t tokens, const flashmask_span* spans,
                                                                  int64_t count, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_block_diffusion(int64_t length, int64_t block, flashmask_mask** mask);

FLASHMASK_API flashmask_status flashmask_mask_dilated_window(int64_t rows, int64_t columns, int64_t left, int64_t right,
                                                             int64_t dilation, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_global_tokens(int64_t tokens, const int64_t* positions, int64_t count,
                                                            int64_t left, int64_t right, flashmask_mask** mask);

/// The pattern of BigBird: what a block of tokens sees.
typedef struct flashmask_big_bird {
  uint64_t struct_size;
  int64_t block;          ///< tokens per block
  int64_t window_blocks;  ///< on either side of its own
  int64_t global_blocks;  ///< the first ones, which see and are seen by all
  int64_t random_blocks;
  int64_t heads;  ///< mask heads, each with random blocks of its own
  uint64_t seed;
} flashmask_big_bird;

FLASHMASK_API flashmask_status flashmask_mask_big_bird(int64_t tokens, const flashmask_big_bird* pattern,
                                                       flashmask_mask** mask);

/// One axis of a grid of tokens; the last axis runs fastest.
typedef struct flashmask_neighbourhood_axis {
  uint64_t struct_size;
  int64_t length;
  int64_t kernel;
  int64_t dilation;
} flashmask_neighbourhood_axis;

FLASHMASK_API flashmask_status flashmask_mask_neighbourhood(const flashmask_neighbourhood_axis* axes, int64_t count,
                                                            flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_strided_factorised(int64_t tokens, int64_t stride, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_fixed_factorised(int64_t tokens, int64_t stride, int64_t summary,
                                                               flashmask_mask** mask);
/// query_buckets [heads, rows], key_buckets [heads, columns].
FLASHMASK_API flashmask_status flashmask_mask_scfa_hash_sparse(const int64_t* query_buckets, const int64_t* key_buckets,
                                                               int64_t rows, int64_t columns, int64_t heads,
                                                               flashmask_mask** mask);
/// kept_queries [heads, rows], kept_keys [heads, columns], nonzero = kept.
FLASHMASK_API flashmask_status flashmask_mask_scfa_qk_sparse(const uint8_t* kept_queries, const uint8_t* kept_keys,
                                                             int64_t rows, int64_t columns, int64_t heads,
                                                             flashmask_mask** mask);
/// `mask` with the given rows dropped: they see nothing. The mask stays the caller's.
FLASHMASK_API flashmask_status flashmask_mask_drop_queries(const flashmask_mask* mask, const int64_t* rows,
                                                           int64_t count, flashmask_mask** result);
/// The mask restricted to some of its rows, disjoint and ascending, and some of its columns, disjoint and in any order.
FLASHMASK_API flashmask_status flashmask_mask_slice(const flashmask_mask* mask, const flashmask_span* rows,
                                                    int64_t row_spans, const flashmask_span* columns,
                                                    int64_t column_spans, flashmask_mask** result);

enum flashmask_tree_sight { FLASHMASK_TREE_ANCESTORS = 0, FLASHMASK_TREE_PARENT = 1 };

/// parents [count]: each an earlier node or −1.
FLASHMASK_API flashmask_status flashmask_mask_tree_in_order(const int64_t* parents, int64_t count, int64_t tokens,
                                                            int64_t prefix, int32_t sight, flashmask_mask** mask);
/// candidates [count], one per MEDUSA head.
FLASHMASK_API flashmask_status flashmask_mask_medusa_tree(const int64_t* candidates, int64_t count, int64_t tokens,
                                                          int64_t prefix, int32_t sight, flashmask_mask** mask);

/// A row and a column that it sees.
typedef struct flashmask_visible_pair {
  int64_t row;
  int64_t column;
} flashmask_visible_pair;

/// `symmetric` and `self_loops` are 0 or 1.
FLASHMASK_API flashmask_status flashmask_mask_graph(int64_t nodes, const flashmask_visible_pair* edges, int64_t count,
                                                    int32_t symmetric, int32_t self_loops, flashmask_mask** mask);

/// visible [batch, heads, rows, columns], nonzero = visible.
FLASHMASK_API flashmask_status flashmask_mask_from_dense(const flashmask_mask_shape* shape, const uint8_t* visible,
                                                         flashmask_mask** mask);

/// Element of dense scores: one byte, nonzero = visible; or an integer that is 0 or 1.
enum flashmask_dense_type {
  FLASHMASK_DENSE_BOOLEAN = 0,
  FLASHMASK_DENSE_I8 = 1,
  FLASHMASK_DENSE_I16 = 2,
  FLASHMASK_DENSE_I32 = 3,
  FLASHMASK_DENSE_I64 = 4
};

/// scores [batch, heads, rows, columns] with strides [4] in elements; a stride of 0 repeats. Read once.
FLASHMASK_API flashmask_status flashmask_mask_from_strided(const flashmask_mask_shape* shape, const void* scores,
                                                           int32_t dense_type, const int64_t* strides,
                                                           flashmask_mask** mask);

/// bits [batch, heads, rows, ceil(columns / 8)], bit c % 8 of byte c / 8 for column c, set = visible.
FLASHMASK_API flashmask_status flashmask_mask_from_packed(const flashmask_mask_shape* shape, const uint8_t* bits,
                                                          flashmask_mask** mask);

/// Nonzero = visible. Called once per score, by several of the library's threads at a time: it must be pure.
typedef int (*flashmask_predicate)(void* context, int64_t batch, int64_t head, int64_t row, int64_t column);
FLASHMASK_API flashmask_status flashmask_mask_from_predicate(const flashmask_mask_shape* shape,
                                                             flashmask_predicate predicate, void* context,
                                                             flashmask_mask** mask);

/// The visible scores of one mask head, in any order.
FLASHMASK_API flashmask_status flashmask_mask_from_pairs(int64_t rows, int64_t columns,
                                                         const flashmask_visible_pair* pairs, int64_t count,
                                                         flashmask_mask** mask);

/// Row i sees column_indices[offsets[i]] … column_indices[offsets[i + 1]); offsets [rows + 1], column_indices [count].
FLASHMASK_API flashmask_status flashmask_mask_from_csr(int64_t rows, int64_t columns, const int64_t* offsets,
                                                       const int64_t* column_indices, int64_t count,
                                                       flashmask_mask** mask);

/// values [batch, heads, columns, vectors], as described in flashmask/startend_row_indices.h. `causal` is 0 or 1.
FLASHMASK_API flashmask_status flashmask_mask_from_startend_row_indices(const int32_t* values,
                                                                        const flashmask_mask_shape* shape, int vectors,
                                                                        int causal, flashmask_mask** mask);

typedef struct flashmask_startend_row_indices {
  uint64_t struct_size;
  int32_t vectors;
  int32_t causal;
  int64_t size;  ///< batch · heads · columns · vectors
} flashmask_startend_row_indices;

/// The shortest encoding. Call with values = NULL, capacity = 0 for the size, then with a buffer of that many values.
/// FLASHMASK_UNSUPPORTED for a mask of bits and for one that a block map was ANDed onto.
FLASHMASK_API flashmask_status flashmask_mask_to_startend_row_indices(const flashmask_mask* mask, int32_t* values,
                                                                      int64_t capacity,
                                                                      flashmask_startend_row_indices* encoding);

/// A score is visible where both masks show it (and), or either does (or). The masks stay the caller's.
FLASHMASK_API flashmask_status flashmask_mask_and(const flashmask_mask* a, const flashmask_mask* b,
                                                  flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_or(const flashmask_mask* a, const flashmask_mask* b,
                                                 flashmask_mask** mask);
/// A score is visible where the mask hides it.
FLASHMASK_API flashmask_status flashmask_mask_not(const flashmask_mask* mask, flashmask_mask** complement);

/// Blocks of scores that are kept or left out as a whole; described in flashmask/block_map.h.
typedef struct flashmask_block_map flashmask_block_map;

/// keep [batch, heads, ceil(rows / block), ceil(columns / block)], 1 = keep; `shape` counts scores.
FLASHMASK_API flashmask_status flashmask_block_map_create(const flashmask_mask_shape* shape, int64_t block,
                                                          const uint8_t* keep, flashmask_block_map** map);
/// The builders of flashmask/block_map_builders.h. `strides` = −1 means all; `scores` has the layout of `keep`.
FLASHMASK_API flashmask_status flashmask_block_map_butterfly(const flashmask_mask_shape* shape, int64_t block,
                                                             int64_t strides, flashmask_block_map** map);
FLASHMASK_API flashmask_status flashmask_block_map_strided(const flashmask_mask_shape* shape, int64_t block,
                                                           int64_t stride, flashmask_block_map** map);
FLASHMASK_API flashmask_status flashmask_block_map_sliding(const flashmask_mask_shape* shape, int64_t block,
                                                           int64_t left, int64_t right, flashmask_block_map** map);
FLASHMASK_API flashmask_status flashmask_block_map_random(const flashmask_mask_shape* shape, int64_t block,
                                                          int64_t kept, uint64_t seed, flashmask_block_map** map);
FLASHMASK_API flashmask_status flashmask_block_map_best(const flashmask_mask_shape* shape, int64_t block,
                                                        const float* scores, int64_t kept, flashmask_block_map** map);
FLASHMASK_API flashmask_status flashmask_block_map_at_least(const flashmask_mask_shape* shape, int64_t block,
                                                            const float* scores, float threshold,
                                                            flashmask_block_map** map);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_block_map_destroy(flashmask_block_map* map);

/// A mask that shows the kept blocks, or what a mask shows inside them. Map and mask stay the caller's.
FLASHMASK_API flashmask_status flashmask_mask_from_block_map(const flashmask_block_map* map, flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_and_block_map(const flashmask_mask* mask, const flashmask_block_map* map,
                                                            flashmask_mask** result);

/// One mask per batch entry, or per head.
FLASHMASK_API flashmask_status flashmask_mask_stack_batch(const flashmask_mask* const* masks, int64_t count,
                                                          flashmask_mask** mask);
FLASHMASK_API flashmask_status flashmask_mask_stack_heads(const flashmask_mask* const* masks, int64_t count,
                                                          flashmask_mask** mask);

/// Dense booleans [batch, heads, rows, columns], 1 = visible; `capacity` counts bytes and must hold them all.
FLASHMASK_API flashmask_status flashmask_mask_expand(const flashmask_mask* mask, uint8_t* visible, int64_t capacity);

FLASHMASK_API flashmask_status flashmask_mask_get_shape(const flashmask_mask* mask, flashmask_mask_shape* shape);

enum flashmask_mask_form { FLASHMASK_INTERVALS = 0, FLASHMASK_BITS = 1 };

/// The lowered form, and why it is that form: `why` lives as long as the mask. Either pointer may be NULL.
FLASHMASK_API flashmask_status flashmask_mask_get_form(const flashmask_mask* mask, int32_t* form, const char** why);

/// What a mask is and what it costs, summed over batch entries and mask heads.
typedef struct flashmask_explanation {
  uint64_t struct_size;
  int32_t form;
  int32_t tile_rows;
  int32_t tile_columns;
  int32_t first_empty_row_count;
  int64_t first_empty_rows[8];  ///< of batch entry 0 and mask head 0
  int64_t empty_rows;
  int64_t visible_pairs;
  int64_t skipped_tiles;
  int64_t partial_tiles;
  int64_t full_tiles;
  double density;  ///< visible pairs ÷ all pairs
  double waste;    ///< scores in active tiles ÷ visible pairs
  uint64_t mask_bytes;
  uint64_t schedule_bytes;
  uint64_t dense_bytes;  ///< size of the boolean matrix that the mask replaces
} flashmask_explanation;

FLASHMASK_API flashmask_status flashmask_mask_explain(const flashmask_mask* mask, int32_t tile_rows,
                                                      int32_t tile_columns, flashmask_explanation* explanation);

typedef struct flashmask_draw_options {
  uint64_t struct_size;
  int64_t batch;
  int64_t head;
  int64_t width;   ///< at most this many characters across and down; 0: 64
  int64_t colour;  ///< ANSI colours when nonzero
} flashmask_draw_options;

/// Draws with characters, row 0 on top. `options` NULL: all of them zero. `size` receives the bytes that the text and
/// its final NUL take; call with buffer = NULL, capacity = 0 to learn it.
FLASHMASK_API flashmask_status flashmask_mask_draw(const flashmask_mask* mask, const flashmask_draw_options* options,
                                                   char* buffer, size_t capacity, size_t* size);

/// Writes the mask as bytes, to save or to send: flashmask/packed_mask.h. `size` receives their number; call with
/// buffer = NULL, capacity = 0 to learn it.
FLASHMASK_API flashmask_status flashmask_mask_pack(const flashmask_mask* mask, void* buffer, int64_t capacity,
                                                   int64_t* size);
/// Restores a packed mask. The bytes may come from anywhere and lie at any address; they are refused unless they hold
/// one mask and nothing else.
FLASHMASK_API flashmask_status flashmask_mask_unpack(const void* bytes, int64_t size, flashmask_mask** mask);

/* ---- Row ranges --------------------------------------------------------------------------------------------- */

/// What the rows of a mask see, as flashmask/row_ranges.h describes it.
typedef struct flashmask_row_ranges flashmask_row_ranges;

typedef struct flashmask_row_ranges_view {
  uint64_t struct_size;
  int64_t ends;           ///< per row, an odd number
  int64_t size;           ///< of values
  const int32_t* values;  ///< [heads, ends, batch × rows]
} flashmask_row_ranges_view;

/// Fails with FLASHMASK_UNSUPPORTED, naming the first row that needs more than `most_ends`.
FLASHMASK_API flashmask_status flashmask_mask_to_row_ranges(const flashmask_mask* mask, int32_t most_ends,
                                                            flashmask_row_ranges** ranges);
/// The array lives as long as the handle.
FLASHMASK_API flashmask_status flashmask_row_ranges_get(const flashmask_row_ranges* ranges,
                                                        flashmask_row_ranges_view* view);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_row_ranges_destroy(flashmask_row_ranges* ranges);
/// values [heads, ends, batch × rows] of the shape.
FLASHMASK_API flashmask_status flashmask_mask_from_row_ranges(const int32_t* values, const flashmask_mask_shape* shape,
                                                              int32_t ends, flashmask_mask** mask);

/* ---- Nodes -------------------------------------------------------------------------------------------------- */

/// A mask as a tree of runs of tokens, for layers with a state, as flashmask/nodes.h describes it.
typedef struct flashmask_nodes flashmask_nodes;

typedef struct flashmask_nodes_view {
  uint64_t struct_size;
  int64_t count;          ///< nodes
  int64_t tokens;         ///< batch × columns of the mask
  const int64_t* begins;  ///< [count], as are ends, parents (−1: none) and levels
  const int64_t* ends;
  const int64_t* parents;
  const int64_t* levels;
  const int64_t* predecessors;  ///< [tokens]: the token whose state a token continues; −1: none
} flashmask_nodes_view;

/// Fails with FLASHMASK_INVALID_ARGUMENT, naming the first column that does not fit, where the mask is no tree.
FLASHMASK_API flashmask_status flashmask_mask_nodes(const flashmask_mask* mask, flashmask_nodes** nodes);
/// The arrays live as long as the handle.
FLASHMASK_API flashmask_status flashmask_nodes_get(const flashmask_nodes* nodes, flashmask_nodes_view* view);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_nodes_destroy(flashmask_nodes* nodes);

/* ---- Reordering --------------------------------------------------------------------------------------------- */

/// A mask in an order of tokens that takes less work, as flashmask/reorder.h describes it.
typedef struct flashmask_reordering flashmask_reordering;

typedef struct flashmask_reordering_view {
  uint64_t struct_size;
  int64_t gained;  ///< 0: the order is unchanged
  int32_t tile_rows;
  int32_t tile_columns;
  int64_t tiles_before;  ///< active tiles
  int64_t tiles_after;
  const int64_t* rows;     ///< [batch, rows] of the mask: row i is row rows[i] of the original
  const int64_t* columns;  ///< [batch, columns]
  const char* why;
} flashmask_reordering_view;

FLASHMASK_API flashmask_status flashmask_mask_reorder(const flashmask_mask* mask, int32_t tile_rows,
                                                      int32_t tile_columns, flashmask_reordering** reordering);
/// Arrays and text live as long as the handle.
FLASHMASK_API flashmask_status flashmask_reordering_get(const flashmask_reordering* reordering,
                                                        flashmask_reordering_view* view);
/// The mask in the new order.
FLASHMASK_API flashmask_status flashmask_reordering_get_mask(const flashmask_reordering* reordering,
                                                             flashmask_mask** mask);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_reordering_destroy(flashmask_reordering* reordering);

/// Row i, column j of the new mask is row rows[i], column columns[j]; rows [batch, rows], columns [batch, columns].
FLASHMASK_API flashmask_status flashmask_mask_permute(const flashmask_mask* mask, const int64_t* rows,
                                                      const int64_t* columns, flashmask_mask** permuted);

/// The order alone, for a graph in compressed sparse rows: offsets [nodes + 1], column_indices [count], order [nodes].
FLASHMASK_API flashmask_status flashmask_reverse_cuthill_mckee(int64_t nodes, const int64_t* offsets,
                                                               const int64_t* column_indices, int64_t count,
                                                               int64_t* order);

/* ---- Several devices ---------------------------------------------------------------------------------------- */

/// Which of the ranks that work on one sequence holds which tokens, as flashmask/partition.h describes it.
typedef struct flashmask_partition flashmask_partition;

enum flashmask_division { FLASHMASK_BALANCED = 0, FLASHMASK_CONTIGUOUS = 1, FLASHMASK_ZIGZAG = 2 };

/// How tokens are shared out, and what tiles and columns cost. Numbers that are 0 mean the defaults of
/// flashmask::PartitionOptions.
typedef struct flashmask_partition_options {
  uint64_t struct_size;
  int32_t division;  ///< a flashmask_division
  int32_t aligned;   ///< nonzero: cuts at tiles only
  int64_t tile;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t element_bytes;
  int64_t flops_per_ns;
  int64_t bytes_per_ns;
  int64_t exchange_ns;
  int64_t node_bytes_per_ns;
} flashmask_partition_options;

typedef struct flashmask_partition_view {
  uint64_t struct_size;
  int64_t tokens;
  int64_t ranks;
  int64_t tile;
  int64_t aligned;  ///< whether all runs begin at multiples of the tile
  int64_t run_count;
  const int64_t* runs;  ///< [run_count, 3], ascending: begin, end, rank
  const char* why;
} flashmask_partition_view;

/// Partitions a sequence that has `count` masks, mask i in weights[i] layers (NULL: one each), over sizes[0] × … ×
/// sizes[levels − 1] ranks. `options` NULL: all zero.
FLASHMASK_API flashmask_status flashmask_partition_create(const flashmask_mask* const* masks, const int64_t* weights,
                                                          int64_t count, const int64_t* sizes, int64_t levels,
                                                          const flashmask_partition_options* options,
                                                          flashmask_partition** partition);
/// Makes a partition from runs [run_count, 3] in any order: begin, end, rank. `tile` = 0 means 128.
FLASHMASK_API flashmask_status flashmask_partition_from_runs(int64_t tokens, int64_t ranks, int64_t tile,
                                                             const int64_t* runs, int64_t run_count,
                                                             flashmask_partition** partition);
/// Arrays and text live as long as the handle.
FLASHMASK_API flashmask_status flashmask_partition_get(const flashmask_partition* partition,
                                                       flashmask_partition_view* view);
/// `loads` [ranks, 6]: tokens, tiles, row tiles, column tiles, columns received, columns sent, as in
/// flashmask::RankLoad.
FLASHMASK_API flashmask_status flashmask_partition_loads(const flashmask_partition* partition,
                                                         const flashmask_mask* mask, int64_t* loads);
/// `nanoseconds` [3] of one call, forward and backward: attention on the busiest rank, communication, and attention if
/// it were shared out evenly. The division and the tile of `options` are not used.
FLASHMASK_API flashmask_status flashmask_partition_predict(const flashmask_partition* partition,
                                                           const flashmask_mask* mask,
                                                           const flashmask_partition_options* options,
                                                           int64_t* nanoseconds);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_partition_destroy(flashmask_partition* partition);

/// Which columns each rank must fetch from others.
typedef struct flashmask_needs flashmask_needs;

FLASHMASK_API flashmask_status flashmask_partition_needs(const flashmask_partition* partition,
                                                         const flashmask_mask* mask, flashmask_needs** needs);
/// `values` [count, 4]: rank, owner, begin, end, sorted by rank and then by column. They live as long as the handle.
FLASHMASK_API flashmask_status flashmask_needs_get(const flashmask_needs* needs, const int64_t** values,
                                                   int64_t* count);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_needs_destroy(flashmask_needs* needs);

/* ---- Attention ---------------------------------------------------------------------------------------------- */

enum flashmask_dtype { FLASHMASK_F32 = 0, FLASHMASK_BF16 = 1, FLASHMASK_F16 = 2 };
enum flashmask_device_type { FLASHMASK_CPU = 0, FLASHMASK_CUDA = 1 };
enum flashmask_direction { FLASHMASK_FORWARD = 0, FLASHMASK_BACKWARD = 1 };
/// The lowered form that a plan uses; BEST: intervals where they are exact, else bits.
enum flashmask_form_choice { FLASHMASK_FORM_BEST = 0, FLASHMASK_FORM_INTERVALS = 1, FLASHMASK_FORM_BITS = 2 };
/// Which tiles a kernel uses if it has small ones beside its own; AUTOMATIC: whichever take less time under the mask.
enum flashmask_tile_size { FLASHMASK_TILES_AUTOMATIC = 0, FLASHMASK_TILES_LARGE = 1, FLASHMASK_TILES_SMALL = 2 };
enum flashmask_visit { FLASHMASK_VISIT_ACTIVE = 0, FLASHMASK_VISIT_ALL = 1 };

/// A strided view of memory that the caller owns. Strides are in elements; the last one is 1. Rank 0: absent.
typedef struct flashmask_tensor {
  void* data;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t rank;
  int64_t shape[4];
  int64_t strides[4];
} flashmask_tensor;

/// What is added to scores; flashmask/problem.h and attention.h (AlibiTensors, BiasTensor) describe it.
typedef enum flashmask_score_bias {
  FLASHMASK_BIAS_NONE,
  FLASHMASK_BIAS_ALIBI,
  FLASHMASK_BIAS_TENSOR,
  FLASHMASK_BIAS_DISTANCES,
} flashmask_score_bias;

/// Everything about an attention call except the data; the layout of each tensor is in flashmask/problem.h.
typedef struct flashmask_problem {
  uint64_t struct_size;
  int64_t batch;
  int64_t query_length;
  int64_t key_length;
  int64_t query_heads;  ///< a multiple of kv_heads, and 0 where these are 0
  int64_t kv_heads;
  int64_t head_dim;
  int64_t value_dim;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  float scale;          ///< 0: 1 / sqrt(head_dim)
  double dropout;       ///< probability with which an attention probability is dropped, in [0, 1)
  double softcap;       ///< above 0: scores s become softcap · tanh(s / softcap); 0: they stay as they are
  int64_t bias;         ///< what is then added to them: a flashmask_score_bias
  double double_scale;  ///< taken instead of `scale`, for the reference in double precision; 0: `scale` holds
  /// What happens to scores before any is masked, such as "softcap(50) | alibi": steps of multiply(number),
  /// softcap(number), alibi, bias, distance and function(expression), one after another, of which one may be a bias
  /// (flashmask/score_function.h says what an expression is). Read when it is given.
  /// NULL: what softcap and bias say, which are 0 beside it.
  const char* change;
} flashmask_problem;

/// Where CPU work runs, so that a host framework can lend its threads. `run` calls body(body_context, 0) …
/// body(body_context, count − 1), each once, concurrently or one after another in ascending order, and returns when
/// all have returned. `context` is passed through.
typedef struct flashmask_executor {
  uint64_t struct_size;
  void* context;
  int (*workers)(void* context);  ///< how many bodies may run at once; at least 1
  void (*run)(void* context, int count, void (*body)(void* body_context, int index), void* body_context);
} flashmask_executor;

/// Everything decided before data arrives: the lowered mask, one schedule per direction, the kernels.
typedef struct flashmask_plan flashmask_plan;

typedef struct flashmask_plan_options {
  uint64_t struct_size;
  const char* kernel;                  ///< a prefix or whole kernel name; NULL or "": the best that fits
  const flashmask_executor* executor;  ///< NULL: the library's own pool
  int32_t visit;                       ///< a flashmask_visit
  int32_t form;                        ///< a flashmask_form_choice
  int32_t reorder;                     ///< nonzero: reorders tokens where that saves work; not with dropout
  int32_t deterministic;               ///< nonzero: kernels that give the same bits on every run; all CPU kernels do
  int32_t forward_tiles;               ///< a flashmask_tile_size; for a slice, that of the whole mask: same bits
  int32_t backward_tiles;              ///< a flashmask_tile_size, as for forward_tiles
  int32_t skip_query_gradient;         ///< nonzero: grad_q is never read, and may hold anything afterwards
  int32_t skip_key_gradients;          ///< nonzero: the same for grad_k and grad_v
  int64_t invariant;                   ///< nonzero: a document's results are the bits that it has alone (attention.h)
  int64_t compile_when_called;         ///< nonzero: kernels compiled for a change of scores wait for the first forward
  int64_t compile_backward_later;      ///< nonzero: those of the backward wait for the first backward
} flashmask_plan_options;

/// `options` NULL: all of them zero.
FLASHMASK_API flashmask_status flashmask_plan_create(const flashmask_mask* mask, const flashmask_problem* problem,
                                                     const flashmask_plan_options* options, flashmask_plan** plan);

/// Where a plan for a GPU is made: flashmask/device_plan.h. Making one does not wait for the device.
typedef struct flashmask_plan_place {
  uint64_t struct_size;
  void* stream;  ///< a cudaStream_t of the problem's device; NULL: its default stream
  void* memory;  ///< on that device, aligned to 256 bytes; the caller keeps it until the plan's last call is done
  size_t bytes;  ///< of `memory`; at least what flashmask_plan_bytes() says
  /// Nonzero: the memory holds the plan of a mask with the same contents, problem and options already, perhaps copied
  /// from where it was made: nothing is launched.
  int64_t made;
} flashmask_plan_place;

/// Bytes that flashmask_plan_create_at() needs on a GPU to plan a problem there; `options` as for
/// flashmask_plan_create(). A caller that uses the plan on another stream lets
/// that stream wait for the stream of the place.
FLASHMASK_API flashmask_status flashmask_plan_bytes(const flashmask_mask* mask, const flashmask_problem* problem,
                                                    const flashmask_plan_options* options, size_t* bytes);
/// Finds on the host which tiles such a plan would use, as options for plans of the mask's slices: `forward` and
/// `backward` receive a flashmask_tile_size, AUTOMATIC where the kernel has one size.
FLASHMASK_API flashmask_status flashmask_plan_tile_sizes(const flashmask_mask* mask, const flashmask_problem* problem,
                                                         const flashmask_plan_options* options, int32_t* forward,
                                                         int32_t* backward);
FLASHMASK_API flashmask_status flashmask_plan_create_at(const flashmask_mask* mask, const flashmask_problem* problem,
                                                        const flashmask_plan_options* options,
                                                        const flashmask_plan_place* place, flashmask_plan** plan);

enum flashmask_device_mask_kind {
  FLASHMASK_DEVICE_ROW_INDICES = 0,
  FLASHMASK_DEVICE_DENSE = 1,
  FLASHMASK_DEVICE_PACKED = 2
};

/// A mask in the memory of a GPU. It is read once, on the stream of the plan, and may be freed afterwards.
typedef struct flashmask_device_mask {
  uint64_t struct_size;
  int32_t kind;     ///< a flashmask_device_mask_kind
  int32_t vectors;  ///< row indices only
  int64_t causal;   ///< row indices only
  flashmask_mask_shape shape;
  /// Row indices: int32 [batch, heads, columns, vectors]. Dense: [batch, heads, rows, columns], one byte each, nonzero
  /// = visible. Packed: [batch, heads, rows, ceil(columns / 8)], bit c % 8 of byte c / 8 for column c.
  const void* data;
  int64_t strides[4];  ///< dense masks only, in bytes
  /// Row indices only: [keep_batch, keep_heads, ceil(rows / 128), ceil(columns / 128)], nonzero = the block is kept;
  /// keep_batch and keep_heads are each 1 or as in `shape`. NULL: all blocks are kept.
  const int32_t* keep_blocks;
  int64_t keep_batch;
  int64_t keep_heads;
  int64_t most_documents;  ///< row indices of invariant plans only; see flashmask/device_plan.h
} flashmask_device_mask;

/// flashmask_plan_bytes() and flashmask_plan_create_at() for a mask in the memory of the problem's device.
FLASHMASK_API flashmask_status flashmask_device_mask_plan_bytes(const flashmask_device_mask* mask,
                                                                const flashmask_problem* problem,
                                                                const flashmask_plan_options* options, size_t* bytes);
FLASHMASK_API flashmask_status flashmask_device_mask_plan_create(const flashmask_device_mask* mask,
                                                                 const flashmask_problem* problem,
                                                                 const flashmask_plan_options* options,
                                                                 const flashmask_plan_place* place,
                                                                 flashmask_plan** plan);

/* ---- Masks from formulas over two tokens -------------------------------------------------------------------- */

enum flashmask_number_type {
  FLASHMASK_NUMBER_BOOLEAN = 0,  ///< one byte, nonzero = true
  FLASHMASK_NUMBER_I32 = 1,
  FLASHMASK_NUMBER_I64 = 2,
  FLASHMASK_NUMBER_F32 = 3,
  FLASHMASK_NUMBER_F64 = 4
};

/// A number of each token: that of (batch entry, head, token) lies strides[0], strides[1] and strides[2] elements
/// apart.
typedef struct flashmask_token_numbers {
  const void* data;    ///< on the formula's device. NULL: each token's own index
  int64_t strides[3];  ///< 0 along what the number does not depend on
  int64_t type;        ///< a flashmask_number_type
} flashmask_token_numbers;

enum flashmask_condition_kind {
  FLASHMASK_ALL_OF = 0,  ///< all parts hold
  FLASHMASK_ANY_OF = 1,
  FLASHMASK_LESS = 2,  ///< the row's number is less than the column's
  FLASHMASK_LESS_EQUAL = 3,
  FLASHMASK_GREATER = 4,
  FLASHMASK_GREATER_EQUAL = 5,
  FLASHMASK_EQUAL = 6,
  FLASHMASK_UNEQUAL = 7,
  FLASHMASK_ROW_FACT = 8,    ///< the row's number, a boolean
  FLASHMASK_COLUMN_FACT = 9  ///< the column's number, a boolean
};

typedef struct flashmask_condition {
  int32_t kind;   ///< a flashmask_condition_kind
  int32_t parts;  ///< ALL_OF and ANY_OF only: how many conditions follow as parts, each with its own; at least 1
  flashmask_token_numbers rows;     ///< not read for COLUMN_FACT
  flashmask_token_numbers columns;  ///< not read for ROW_FACT; else of the type of `rows`, where both have data
} flashmask_condition;

/// Asks which rows of each column a formula shows, or masks.
typedef struct flashmask_formula {
  uint64_t struct_size;
  const flashmask_condition* conditions;  ///< the whole first, in prefix order
  int64_t count;
  flashmask_mask_shape shape;  ///< batch entries and heads that the formula tells apart
  int32_t visible;             ///< nonzero: ranges of visible rows are asked for, else of masked ones
  int32_t slots;               ///< the most ranges of a column; at least 1
  int32_t device_type;
  int32_t device_index;
  void* stream;     ///< a cudaStream_t of the device; NULL on the CPU
  void* workspace;  ///< flashmask_formula_workspace() bytes on the device, aligned to 256; NULL on the CPU
  size_t workspace_bytes;
} flashmask_formula;

enum flashmask_formula_outcome {
  FLASHMASK_SEARCH_TOO_LONG = 1 << 29,  ///< the formula alternates too often
  FLASHMASK_NOT_A_NUMBER = 1 << 30      ///< a comparison has NaN, with which the order of numbers says nothing
};

/// Returns the bytes of memory on the device that flashmask_formula_ranges() takes; 0 on the CPU. FLASHMASK_UNSUPPORTED
/// for formulas that are too long, or too deep, for a GPU.
FLASHMASK_API flashmask_status flashmask_formula_workspace(const flashmask_formula* formula, size_t* bytes);

/// Writes ranges [batch, heads, columns, 2 slots] on the device: begins and ends in turn, ascending, none touching the
/// next, and the number of rows where there is none. `found`, also there, receives the most ranges of any column, more
/// than `slots` where some column has more, or a flashmask_formula_outcome; then `ranges` hold anything. Takes
/// O(log rows) steps for a comparison of a column, and does not wait for the device.
FLASHMASK_API flashmask_status flashmask_formula_ranges(const flashmask_formula* formula, int32_t* ranges,
                                                        int32_t* found);

/* ---- Plans, continued --------------------------------------------------------------------------------------- */

/// Which CUDA graph capture a stream of a device is in: a number that the process uses only once; 0 for none.
FLASHMASK_API flashmask_status flashmask_stream_capture(int32_t device_index, void* stream, uint64_t* capture);

/// Destroying NULL is legal. The mask of a plan may be destroyed before it.
FLASHMASK_API void flashmask_plan_destroy(flashmask_plan* plan);

/// `name` lives as long as the plan.
FLASHMASK_API flashmask_status flashmask_plan_kernel(const flashmask_plan* plan, int32_t direction, const char** name);

/// A kernel that was compiled for the problem's change of scores while a plan was made (compiled_kernels.h). Text lives
/// as long as the plan.
typedef struct flashmask_compiled_kernel {
  uint64_t struct_size;
  const char* name;      ///< such as sm80::column_kernel
  const char* compiler;  ///< its name, version and file
  int64_t origin;        ///< 0: it was compiled; 1: an earlier process had; 2: an earlier plan of this process had it
  double seconds;        ///< until it could be launched
  int64_t spilled;       ///< bytes of registers that a thread keeps in memory
} flashmask_compiled_kernel;

/// Gives the kernel of a direction with this index, counted from 0; NULL as `name` where there are no more.
FLASHMASK_API flashmask_status flashmask_plan_compiled_kernel(const flashmask_plan* plan, int32_t direction,
                                                              int64_t index, flashmask_compiled_kernel* kernel);

/// The outcome of the option `reorder`; all zero where it was not requested. Arrays and text live as long as the plan.
FLASHMASK_API flashmask_status flashmask_plan_reordering(const flashmask_plan* plan, flashmask_reordering_view* view);

/// Bytes of workspace that a call needs when `workers` threads run it.
FLASHMASK_API flashmask_status flashmask_plan_workspace(const flashmask_plan* plan, int32_t direction, int workers,
                                                        size_t* bytes);

/// Writes which probabilities of a problem with dropout survive, [batch, query_heads, query_length, key_length], 1 =
/// kept. `capacity` counts bytes and must hold them all. See flashmask/dropout.h.
FLASHMASK_API flashmask_status flashmask_dropout_expand(const flashmask_problem* problem, uint64_t seed,
                                                        uint64_t offset, uint8_t* kept, int64_t capacity);

/// Packs the place of `problem` in a larger problem of which it is a part and whose dropout decisions it takes: its
/// first query head is head `first_head` of the larger problem's `heads` (0: the problem's own), and its i-th eight
/// rows are the larger problem's eight rows number row_eights[i], [ceil(query_length / 8)]; NULL: the same rows;
/// columns in the same way. On a GPU the numbers within a kernel's tile must be consecutive, which is checked. `packed`
/// receives what the field dropout_place of a call takes, `size` numbers; call with packed = NULL, capacity = 0 to
/// learn how many. See flashmask/dropout.h.
FLASHMASK_API flashmask_status flashmask_dropout_place_pack(const flashmask_problem* problem, int64_t first_head,
                                                            int64_t heads, const int32_t* row_eights,
                                                            const int32_t* column_eights, int32_t* packed,
                                                            int64_t capacity, int64_t* size);

/// Where a call runs and the memory it may use. All zero but the size: the library's own pool and memory.
typedef struct flashmask_execution {
  uint64_t struct_size;
  const flashmask_executor* executor;
  void* workspace;                    ///< NULL: allocated for the call; on a GPU always the caller's, in GPU memory
  size_t workspace_bytes;             ///< of `workspace`
  void* stream;                       ///< the CUDA stream of a call on that device; must be NULL on the CPU
  uint64_t dropout_seed;              ///< for a problem with dropout; the backward takes its forward's seed
  uint64_t dropout_offset;            ///< below 2^32
  const uint64_t* dropout_on_device;  ///< for a call on a GPU, instead of both: points to them there; else NULL
  const int32_t* dropout_place;       ///< [dropout_place_size], a packed place on the plan's device; NULL: none
  int64_t dropout_place_size;
} flashmask_execution;

/// Each element of an output has memory of its own; inputs may overlap. Tokens that see nothing or are never seen,
/// such as padding, must be finite too: a NaN or infinity there reaches rows that share its tile. See
/// flashmask/attention.h.
typedef struct flashmask_forward_tensors {
  uint64_t struct_size;
  flashmask_tensor q, k, v;       ///< in
  flashmask_tensor o, lse;        ///< out; every element is written
  flashmask_tensor sinks;         ///< in, (query_heads) or (batch, query_heads, query_length); may be absent
  flashmask_tensor alibi_slopes;  ///< in, float32, where the problem has FLASHMASK_BIAS_ALIBI
  flashmask_tensor query_positions, key_positions;  ///< in, float32, beside alibi_slopes; may be absent
  flashmask_tensor bias;  ///< in, where the problem has FLASHMASK_BIAS_TENSOR or _DISTANCES; each dimension but the
                          ///< last one may be 1
  int64_t bias_origin;    ///< the entry of distance 0, for FLASHMASK_BIAS_DISTANCES
  flashmask_tensor max_scores;   ///< out, shape and dtype of lse: the largest score of each row; absent: not wanted
  flashmask_tensor operands[4];  ///< in, what a function of the problem's change reads, in its order, of any strides
} flashmask_forward_tensors;

/// The rules of flashmask_forward_tensors hold here too.
typedef struct flashmask_backward_tensors {
  uint64_t struct_size;
  flashmask_tensor q, k, v, o, lse, grad_o;  ///< in
  flashmask_tensor grad_lse;                 ///< in, shape and dtype of lse; may be absent
  flashmask_tensor grad_q, grad_k, grad_v;   ///< out; every element is written. grad_k and grad_v may both be float32
  flashmask_tensor sinks, grad_sinks;        ///< in and out, where the gradient of the sinks is wanted; may be absent
  flashmask_tensor alibi_slopes;             ///< in, as in the forward
  flashmask_tensor query_positions, key_positions;  ///< in, as in the forward
  flashmask_tensor bias;                            ///< in, as in the forward
  int64_t bias_origin;                              ///< as in the forward
  flashmask_tensor grad_bias;                       ///< out, shape and dtype of bias; absent where it is not wanted
  flashmask_tensor operands[4];                     ///< in, as in the forward
} flashmask_backward_tensors;

/// The rules of flashmask_forward_tensors hold here too.
typedef struct flashmask_tangent_tensors {
  uint64_t struct_size;
  flashmask_tensor q, k, v, o, lse;                  ///< in; o and lse are those of the forward
  flashmask_tensor tangent_q, tangent_k, tangent_v;  ///< in, as q, k and v; each may be absent, for zeros
  flashmask_tensor tangent_o, tangent_lse;           ///< out, as o and lse; every element is written
  flashmask_tensor sinks;                            ///< in, as in the forward
  flashmask_tensor alibi_slopes;                     ///< in, as in the forward
  flashmask_tensor query_positions, key_positions;   ///< in, as in the forward
  flashmask_tensor bias;                             ///< in, as in the forward
  int64_t bias_origin;                               ///< as in the forward
  flashmask_tensor operands[4];                      ///< in, as in the forward
} flashmask_tangent_tensors;

/// Computes o = softmax(scale · q kᵀ, capped and biased as the problem says, under the mask) v, with e^sink added to
/// the sum that o is divided by where sinks are given: flashmask/attention.h. `execution` NULL: all of it zero. On a
/// GPU a call returns before the work is done.
FLASHMASK_API flashmask_status flashmask_forward(const flashmask_plan* plan, const flashmask_forward_tensors* tensors,
                                                 const flashmask_execution* execution);

/// Computes the gradients of q, k, v, and of the sinks. `execution` NULL: all of it zero.
FLASHMASK_API flashmask_status flashmask_backward(const flashmask_plan* plan, const flashmask_backward_tensors* tensors,
                                                  const flashmask_execution* execution);

/// Computes the tangents of o and lse, given those of q, k and v: flashmask/attention.h. `execution` NULL: all of it
/// zero.
FLASHMASK_API flashmask_status flashmask_forward_tangents(const flashmask_plan* plan,
                                                          const flashmask_tangent_tensors* tensors,
                                                          const flashmask_execution* execution);

/// Writes the bytes that flashmask_forward_tangents() needs besides its tensors when `workers` threads run it.
FLASHMASK_API flashmask_status flashmask_plan_tangents_workspace(const flashmask_plan* plan, int workers,
                                                                 size_t* bytes);

/* ---- Kernels ------------------------------------------------------------------------------------------------ */

/// What a call may ask of a kernel besides its sizes, dtype and form of mask; flashmask/features.h describes them.
typedef enum flashmask_feature {
  FLASHMASK_FEATURE_DROPOUT,
  FLASHMASK_FEATURE_DETERMINISTIC,
  FLASHMASK_FEATURE_BLOCK_MAP,
  FLASHMASK_FEATURE_SINKS,
  FLASHMASK_FEATURE_FLOAT32_KEY_GRADIENTS,
  FLASHMASK_FEATURE_SOFTCAP,
  FLASHMASK_FEATURE_ALIBI,
  FLASHMASK_FEATURE_INVARIANT,
  FLASHMASK_FEATURE_BIAS,
  FLASHMASK_FEATURE_DISTANCE_BIAS,
  FLASHMASK_FEATURE_ANY_CHANGE,
  FLASHMASK_FEATURE_MAX_SCORES,
  FLASHMASK_FEATURE_FUNCTIONS,
} flashmask_feature;

/// An entry of the kernel table, as flashmask/kernels.h describes it. Texts live as long as the process.
typedef struct flashmask_kernel_info {
  uint64_t struct_size;
  const char* name;
  const char* arch;
  int32_t direction;
  int32_t dtype;
  int32_t device_type;
  int32_t form;  ///< form of the masks that it reads: a flashmask_mask_form
  int32_t tile_rows;
  int32_t tile_columns;
  const char* why_not;               ///< why this machine does not run it; "" when it does, if only by name
  int32_t head_dim;                  ///< the largest head_dim that it takes
  int32_t value_dim;                 ///< the largest value_dim that it takes
  uint64_t features;                 ///< bit i: it has flashmask_feature i
  int32_t compute_capability_major;  ///< the lowest that it runs on; 0 for CPU kernels
  int32_t compute_capability_minor;
} flashmask_kernel_info;

/// Number of kernels in this build; flashmask_kernel_get() takes an index below it, best kernels first for each
/// direction, dtype and form.
FLASHMASK_API flashmask_status flashmask_kernel_count(int64_t* count);
FLASHMASK_API flashmask_status flashmask_kernel_get(int64_t index, flashmask_kernel_info* info);

/// The kernel table as text, for people: for each device, direction and dtype the kernels that run on this machine, or
/// why none does; with every_kernel != 0 each kernel by name. The text lives as long as the process.
FLASHMASK_API flashmask_status flashmask_describe_kernels(int every_kernel, const char** text);

/// Reads a change of scores as flashmask_problem has it: FLASHMASK_INVALID_ARGUMENT, and what is not understood and
/// where, if it is none.
FLASHMASK_API flashmask_status flashmask_score_check(const char* change);
/// What a change of scores, or an expression, computes and what serves it, as text for people: score_report.h.
/// `architecture` NULL: that of the first GPU here; compiles != 0: kernels are compiled to say what that takes. The
/// text lives as long as the process.
FLASHMASK_API flashmask_status flashmask_score_report(const char* change, const char* architecture, int64_t head_dim,
                                                      int compiles, const char** text);
/// The folder of compiled kernels and what is in it, as text for people, which lives as long as the process.
FLASHMASK_API flashmask_status flashmask_describe_cached_kernels(const char** text);
/// Removes all compiled kernels from their folder; `removed`: how many there were.
FLASHMASK_API flashmask_status flashmask_clear_cached_kernels(int64_t* removed);

/// Instruction sets that plans on this machine choose from, best first, such as "avx512 avx2 scalar"; the text lives as
/// long as the process.
FLASHMASK_API flashmask_status flashmask_instruction_sets(const char** names);

/// Results of attention of the same queries over disjoint keys; the layouts are in flashmask/merge.h.
typedef struct flashmask_merge_tensors {
  uint64_t struct_size;
  flashmask_tensor o1, lse1, o2, lse2;  ///< in
  flashmask_tensor o, lse;              ///< out; may be a part's own tensors
  const flashmask_tensor* more;         ///< in: o3, lse3, o4, lse4 and so on
  int64_t more_count;                   ///< parts besides the first two
} flashmask_merge_tensors;

typedef struct flashmask_merge_gradients {
  uint64_t struct_size;
  flashmask_tensor o1, lse1, o2, lse2, o, lse, grad_o;      ///< in
  flashmask_tensor grad_lse;                                ///< in, shape and dtype of lse; may be absent
  flashmask_tensor grad_o1, grad_lse1, grad_o2, grad_lse2;  ///< out; every element is written
  const flashmask_tensor* more;  ///< o3, lse3 (in), grad_o3, grad_lse3 (out), o4, lse4 and so on
  int64_t more_count;            ///< parts besides the first two
} flashmask_merge_gradients;

/// Computes attention over the keys of all parts, and its gradients, on a CPU or a GPU. Only the executor and the
/// stream of `execution` are used; NULL: the library's own pool, the default stream.
FLASHMASK_API flashmask_status flashmask_merge(const flashmask_merge_tensors* tensors,
                                               const flashmask_execution* execution);
FLASHMASK_API flashmask_status flashmask_merge_backward(const flashmask_merge_gradients* tensors,
                                                        const flashmask_execution* execution);

/* ---- Linear attention --------------------------------------------------------------------------------------- */

/// Shapes, dtype and kind of a call of linear attention, as flashmask/linear_attention.h describes them.
typedef struct flashmask_linear_problem {
  uint64_t struct_size;
  int64_t batch;
  int64_t length;
  int64_t heads;
  int64_t key_heads;
  int64_t key_dim;
  int64_t value_dim;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  float scale;        ///< 0: 1 / sqrt(key_dim)
  int64_t normalize;  ///< nonzero: divide as mLSTM does
} flashmask_linear_problem;

/// The nodes of a mask and a kernel, for any number of calls.
typedef struct flashmask_linear_plan flashmask_linear_plan;

typedef struct flashmask_linear_plan_view {
  uint64_t struct_size;
  int64_t nodes;       ///< of the whole batch: how many final states there are
  int64_t roots;       ///< how many initial states there are
  const char* kernel;  ///< lives as long as the plan
} flashmask_linear_plan_view;

/// `kernel`: a prefix or whole kernel name; NULL or "": the best that runs here. Fails with FLASHMASK_INVALID_ARGUMENT,
/// naming the first column that does not fit, where the mask is no tree, and with FLASHMASK_UNSUPPORTED where no kernel
/// serves the problem: on GPUs they take bfloat16 and float16, keys to 256 and values to 512 dims, multiples of 8.
FLASHMASK_API flashmask_status flashmask_linear_plan_create(const flashmask_mask* mask,
                                                            const flashmask_linear_problem* problem, const char* kernel,
                                                            flashmask_linear_plan** plan);
FLASHMASK_API flashmask_status flashmask_linear_plan_get(const flashmask_linear_plan* plan,
                                                         flashmask_linear_plan_view* view);
/// Destroying NULL is legal.
FLASHMASK_API void flashmask_linear_plan_destroy(flashmask_linear_plan* plan);

/// Gates and states are float32. States are one per root going in and one per node coming out, in all of their three
/// tensors, or absent.
typedef struct flashmask_linear_forward_tensors {
  uint64_t struct_size;
  flashmask_tensor q, k, v;                                               ///< in
  flashmask_tensor log_forget, log_input;                                 ///< in; may be absent
  flashmask_tensor initial_state, initial_normalizer, initial_log_scale;  ///< in; may be absent
  flashmask_tensor o;                                                     ///< out
  flashmask_tensor final_state, final_normalizer, final_log_scale;        ///< out; may be absent
} flashmask_linear_forward_tensors;

typedef struct flashmask_linear_backward_tensors {
  uint64_t struct_size;
  flashmask_tensor q, k, v;                                               ///< in
  flashmask_tensor log_forget, log_input;                                 ///< in, as in the forward
  flashmask_tensor initial_state, initial_normalizer, initial_log_scale;  ///< in, as in the forward
  flashmask_tensor o, grad_o;                                             ///< in
  flashmask_tensor grad_final_state, grad_final_normalizer;               ///< in; may be absent
  flashmask_tensor grad_q, grad_k, grad_v;                                ///< out
  flashmask_tensor grad_log_forget, grad_log_input;                       ///< out; may be absent
  flashmask_tensor grad_initial_state, grad_initial_normalizer;           ///< out; may be absent
} flashmask_linear_backward_tensors;

/// Return the bytes of GPU memory that a call takes as the workspace of its execution; 0 on the CPU. Where a call on a
/// GPU is given none, it allocates them for itself. Of the tensors only which are present counts.
FLASHMASK_API flashmask_status flashmask_linear_forward_workspace(const flashmask_linear_plan* plan,
                                                                  const flashmask_linear_forward_tensors* tensors,
                                                                  size_t* bytes);
FLASHMASK_API flashmask_status flashmask_linear_backward_workspace(const flashmask_linear_plan* plan,
                                                                   const flashmask_linear_backward_tensors* tensors,
                                                                   size_t* bytes);

/// Computes linear attention and its gradients. Of `execution` the executor counts on a CPU (NULL: the library's own
/// pool), and workspace and stream on a GPU, where calls return before the work is done.
FLASHMASK_API flashmask_status flashmask_linear_forward(const flashmask_linear_plan* plan,
                                                        const flashmask_linear_forward_tensors* tensors,
                                                        const flashmask_execution* execution);
FLASHMASK_API flashmask_status flashmask_linear_backward(const flashmask_linear_plan* plan,
                                                         const flashmask_linear_backward_tensors* tensors,
                                                         const flashmask_execution* execution);

/// Linear attention in double precision, as a recurrence: slow, but right. Arrays are contiguous, in the layouts of
/// flashmask/linear_attention.h; the problem's dtype and device are ignored. NULL: a gate of 0, no initial states, an
/// output that is not wanted. Initial states are one per root, final ones one per node.
typedef struct flashmask_reference_linear_tensors {
  uint64_t struct_size;
  const double *q, *k, *v, *log_forget, *log_input;                      ///< in
  const double *initial_state, *initial_normalizer, *initial_log_scale;  ///< in
  double *o, *final_state, *final_normalizer, *final_log_scale;          ///< out, of the forward
  const double *grad_o, *grad_final_state, *grad_final_normalizer;       ///< in, of the backward
  double *grad_q, *grad_k, *grad_v, *grad_log_forget, *grad_log_input;   ///< out, of the backward
  double *grad_initial_state, *grad_initial_normalizer;                  ///< out, of the backward
} flashmask_reference_linear_tensors;

FLASHMASK_API flashmask_status flashmask_reference_linear_forward(const flashmask_mask* mask,
                                                                  const flashmask_linear_problem* problem,
                                                                  const flashmask_reference_linear_tensors* tensors);
FLASHMASK_API flashmask_status flashmask_reference_linear_backward(const flashmask_mask* mask,
                                                                   const flashmask_linear_problem* problem,
                                                                   const flashmask_reference_linear_tensors* tensors);

/* ---- Reference ---------------------------------------------------------------------------------------------- */

/// Dense attention in double precision, which every kernel is checked against: slow, but right. Arrays are contiguous,
/// in the layouts of flashmask/problem.h; the problem's dtype and device are ignored.
typedef struct flashmask_reference_inputs {
  uint64_t struct_size;
  const double* q;
  const double* k;
  const double* v;
  uint64_t dropout_seed;         ///< for a problem with dropout; the backward takes its forward's seed
  uint64_t dropout_offset;       ///< below 2^32
  const double* sinks;           ///< [sink_count]; NULL: none
  int64_t sink_count;            ///< query_heads, or batch · query_heads · query_length
  const int32_t* dropout_place;  ///< [dropout_place_size], a packed place; NULL: none
  int64_t dropout_place_size;
  const double* alibi_slopes;     ///< [alibi_slope_count], for a problem with FLASHMASK_BIAS_ALIBI
  int64_t alibi_slope_count;      ///< query_heads, or batch · query_heads
  const double* query_positions;  ///< [query_position_count], beside alibi_slopes; NULL: as AlibiTensors says
  int64_t query_position_count;   ///< query_length, or batch · query_length
  const double* key_positions;    ///< [key_position_count]
  int64_t key_position_count;     ///< key_length, or batch · key_length
  const double* bias;             ///< [bias_shape], for a problem with FLASHMASK_BIAS_TENSOR or _DISTANCES
  int64_t bias_shape[4];
  int64_t bias_origin;         ///< the entry of distance 0, for FLASHMASK_BIAS_DISTANCES
  const double* operands[4];   ///< [operand_shapes[i], of as many dimensions as the function has indices]; NULL: none
  int64_t operand_shapes[16];  ///< four numbers for each operand
} flashmask_reference_inputs;

/// o [batch, query_length, query_heads, value_dim], lse [batch, query_heads, query_length].
FLASHMASK_API flashmask_status flashmask_reference_forward(const flashmask_mask* mask, const flashmask_problem* problem,
                                                           const flashmask_reference_inputs* inputs, double* o,
                                                           double* lse);
/// The largest score that each row sees [batch, query_heads, query_length], −infinity where it sees nothing.
FLASHMASK_API flashmask_status flashmask_reference_max_scores(const flashmask_mask* mask,
                                                              const flashmask_problem* problem,
                                                              const flashmask_reference_inputs* inputs,
                                                              double* max_scores);
/// Tangents of o and lse, given those of q, k and v, each of which may be NULL, for zeros.
FLASHMASK_API flashmask_status flashmask_reference_forward_tangents(
    const flashmask_mask* mask, const flashmask_problem* problem, const flashmask_reference_inputs* inputs,
    const double* tangent_q, const double* tangent_k, const double* tangent_v, double* tangent_o, double* tangent_lse);
/// Gradients of q, k, v. `grad_lse` may be NULL.
FLASHMASK_API flashmask_status flashmask_reference_backward(const flashmask_mask* mask,
                                                            const flashmask_problem* problem,
                                                            const flashmask_reference_inputs* inputs,
                                                            const double* grad_o, const double* grad_lse,
                                                            double* grad_q, double* grad_k, double* grad_v);
/// Gradients of the sinks, as many as were given.
FLASHMASK_API flashmask_status flashmask_reference_backward_sinks(const flashmask_mask* mask,
                                                                  const flashmask_problem* problem,
                                                                  const flashmask_reference_inputs* inputs,
                                                                  const double* grad_o, const double* grad_lse,
                                                                  double* grad_sinks);
/// Gradient of the bias, in its shape.
FLASHMASK_API flashmask_status flashmask_reference_backward_bias(const flashmask_mask* mask,
                                                                 const flashmask_problem* problem,
                                                                 const flashmask_reference_inputs* inputs,
                                                                 const double* grad_o, const double* grad_lse,
                                                                 double* grad_bias);

#ifdef __cplusplus
}
#endif
