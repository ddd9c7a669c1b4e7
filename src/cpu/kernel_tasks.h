// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "cpu/compiler.h"
#include "flashmask/score_change.h"
#include "flashmask/tensor.h"
#include "flashmask/tile.h"
#include "mask/cell_words.h"

/// The arguments of a CPU kernel: plain pointers and sizes for one row tile or one column tile of one head. Kernel
/// files are compiled for instruction sets the machine may lack, so nothing here may instantiate a library template.
namespace flashmask::cpu {

/// A word holds the mask of 64 neighbouring scores.
inline constexpr int kWordBits = kCellSize;

/// Tiles of the forward: one word holds the mask of a key column of a tile. Larger tiles gain nothing, and short
/// documents are slower with them.
inline constexpr int kForwardRows = kWordBits;
inline constexpr int kForwardColumns = kWordBits;

/// Tiles of the backward: its products sum over queries and over keys, and longer sums amortise the cost of adding them
/// to memory. Partial tiles are trimmed, so that short documents are not slower.
inline constexpr int kBackwardRows = 2 * kWordBits;
inline constexpr int kBackwardColumns = 2 * kWordBits;

/// The blocks of a BlockMap that one mask head keeps; all of them if `keep` is null.
struct HeadBlocks {
  const std::uint8_t* keep;  ///< [block rows, block columns]
  std::int64_t block_columns;
  std::int64_t block;

  [[gnu::always_inline]] bool keeps(std::int64_t row, std::int64_t column) const {
    return keep == nullptr || keep[row / block * block_columns + column / block] != 0;
  }
};

/// The cells of a BitMask; the first offset belongs to one mask head's first row of cells.
struct HeadCells {
  const std::int64_t* offsets;
  const Run* runs;
  const std::int64_t* first_cells;
  const std::uint64_t* words;
};

/// The mask that decides the scores of one mask head's partial tiles, in the form that the plan's predicate reads.
struct PartialTiles {
  IntervalColumns intervals;
  HeadBlocks blocks;  ///< beside the intervals
  HeadCells cells;
};

/// Where a tile lies and how much of it exists. Masks and statistics are read by place, tensors by token.
struct TileBounds {
  std::int64_t row0;  ///< place
  std::int64_t column0;
  int rows;
  int columns;
  std::int64_t row_token = 0;  ///< at row0
  std::int64_t column_token = 0;
};

/// Reads 64 × 64 scores as words: bit r of word c, or bit c of word r, says whether row r sees column c.
using ReadWords = void (*)(const PartialTiles& mask, const TileBounds& tile, std::uint64_t* word);
struct PredicateCode {
  ReadWords column_words;
  ReadWords row_words;
};

/// The inputs of one query head's dropout decisions; see dropout.h.
struct DropoutDraw {
  std::uint32_t key0, key1;  ///< the seed
  std::uint32_t head;        ///< batch · query heads + query head, as DropoutTables::head() counts them
  std::uint32_t offset;
  const std::int32_t* row_eights;     ///< of a packed DropoutPlace; null: rows have their own numbers
  const std::int32_t* column_eights;  ///< the same for columns
  std::uint32_t threshold;            ///< the least 16-bit number that is kept; 0: no dropout
  float scale;                        ///< of the probabilities that are kept
};

struct RunList {
  const Run* runs;
  std::int64_t count;
};

/// One head of a (sequence, dim) operand; the stride is between tokens, in elements.
struct Rows {
  const void* data;
  std::int64_t stride;
};
struct MutableRows {
  void* data;
  std::int64_t stride;
  bool past_caches = false;  ///< rows of whole cache lines bypass the caches, as they are not read soon
};

/// The nodes of a ScoreFunction.
struct FunctionNodes {
  const ScoreNode* nodes = nullptr;  ///< [count]; null: there is no function
  int count = 0, value = 0, slope = 0;
  int bias_slope = -1;                 ///< −1: it reads no bias
  int query_sides = 0, key_sides = 0;  ///< values of queries, and of keys, that meet others

  FLASHMASK_INLINE int sides(bool of_keys) const { return of_keys ? key_sides : query_sides; }
};

/// What a function reads beside the score, for one query head.
struct HeadOperands {
  const TensorView* operands = nullptr;
  std::int64_t batch = 0, head = 0;
};

struct HeadSizes {
  PlacedTokens queries, keys;
  DType dtype;
  int head_dim;
  int value_dim;
  float scale;             ///< of products; the change of scores begins behind it
  float gradient_scale;    ///< what turns gradients of changed scores, times their slopes, into those of products
  float bias_factor;       ///< what turns them into those of what a bias adds
  const ScoreStep* steps;  ///< [step_count] of the change of scores
  int step_count;
  bool has_bias_tensor = false;  ///< whether tiles of bias values need memory
  FunctionNodes function = {};   ///< the one step of the change of scores, if that is a function
};

/// What a bias tensor adds to the scores of one query head. Rows are counted by token.
struct HeadValues {
  const void* data;  ///< of row 0; null: nothing
  DType dtype;
  std::int64_t row_stride;  ///< 0: one row for all
  /// Entries of a row, where there is one for each distance: row i and column j get entry i − j + shift. 0: there is
  /// one for each column.
  std::int64_t entries;
  std::int64_t shift;
};

/// Where the gradient of a head's bias is written as it is found, in rows of columns, as no other head shares it.
struct HeadValueGradients {
  void* data;  ///< of row 0; null: not wanted, or summed in a pass of its own
  DType dtype;
  std::int64_t row_stride;
};

/// ALiBi of one query head, by which the score of a row and a column loses slope · |their distance|, or values.
struct HeadBias {
  bool present;  ///< whether there is ALiBi
  float slope;
  const float* query_positions;  ///< of row 0; null: row i has position i + row_shift
  const float* key_positions;    ///< of column 0; null: column j has position j
  std::int64_t row_shift;
  HeadValues values;
  HeadOperands operands = {};
};

/// The operands that a forward task reads before anything else; q.data is null if it reads nothing.
struct FirstRead {
  Rows q, k, v;
  TokenRun rows, columns;
};

/// One row tile of one query head; its first row exists.
struct ForwardTask {
  HeadSizes sizes;
  Rows q, k, v;
  MutableRows o;
  float* lse;          ///< of row 0
  float* max_scores;   ///< of row 0; null: not wanted
  const float* sinks;  ///< [kForwardRows], of the row tile; null: none
  HeadBias bias;
  std::int64_t row_tile;
  FirstRead next;  ///< a guess at this worker's next task, for prefetching
  RunList runs;
  PartialTiles mask;
  ReadWords column_words;
  DropoutDraw dropout;
  bool trim;  ///< leave out the wholly masked parts of partial tiles
  std::byte* scratch;
};

/// One row tile of one query head, of which the tangents of o and lse are wanted; its first row exists.
struct TangentsTask {
  HeadSizes sizes;
  Rows q, k, v, o;
  const float* lse;                      ///< of row 0, of the forward, as o is
  Rows tangent_q, tangent_k, tangent_v;  ///< data null: zeros
  MutableRows tangent_o;
  float* tangent_lse;  ///< of row 0
  const float* sinks;  ///< [kForwardRows], of the row tile; null: none
  HeadBias bias;
  std::int64_t row_tile;
  RunList runs;
  PartialTiles mask;
  ReadWords column_words;
  DropoutDraw dropout;
  bool trim;
  std::byte* scratch;
};

/// Row statistics that the backward needs, made by the prepare step: log2-domain lse (+inf where the row sees nothing,
/// so that its probabilities are 0) and Δ = rowsum(dO ∘ O) − dlse.
struct LseAndDelta {
  float* lse2;
  float* delta;
};

/// One row tile of one query head, before the backward.
struct PrepareTask {
  HeadSizes sizes;
  Rows o, grad_o;
  const float* lse;
  const float* grad_lse;  ///< may be null
  LseAndDelta statistics;
  MutableRows grad_q;
  bool visited;  ///< false: no key sees this row tile, so its gradient is written here
  std::int64_t row_tile;
};

/// Column tiles add to a row tile's dQ in ascending order, whichever threads run them: that makes the sum the same for
/// any number of threads without one copy of dQ per thread. `added` counts the column tiles that have added so far.
struct GradQueryTurns;

/// One query head of the group that shares a key head.
struct BackwardHead {
  Rows q, grad_o;
  LseAndDelta statistics;
  MutableRows grad_q;
  float* grad_q_sum;  ///< float32 [row tiles][kBackwardRows][padded head dim]; null: the gradient of q is not wanted
  GradQueryTurns* turns;
  RunList runs;  ///< row tiles of this column tile
  PartialTiles mask;
  DropoutDraw dropout;
  HeadBias bias;
  HeadValueGradients grad_bias;
};

/// One column tile of one key head.
struct BackwardTask {
  HeadSizes sizes;
  Rows k, v;
  MutableRows grad_k, grad_v;
  bool key_gradients;      ///< whether grad_k and grad_v are wanted
  bool float32_gradients;  ///< grad_k and grad_v are float32, whatever the dtype of the others
  std::int64_t column_tile;
  Rows next_k, next_v;  ///< a guess at this worker's next task, for prefetching
  std::int64_t next_column_tile;
  const BackwardHead* heads;
  int head_count;
  ReadWords row_words;
  float dropout_scale;  ///< of the probabilities that are kept
  bool trim;
  std::byte* scratch;
  /// [kBackwardRows][kBackwardColumns], to which the gradients of biased scores of all visited tiles are added; null:
  /// they are not wanted.
  float* bias_sum = nullptr;
};

struct Turn {
  bool first;
  bool last;
};
/// Waits until every earlier column tile has added to the row tile; returns whether this one is the first or the last.
Turn await_turn(GradQueryTurns& turns, std::int64_t row_tile, std::int64_t column_tile);
void pass_turn(GradQueryTurns& turns, std::int64_t row_tile);

/// The code of one entry of the kernel table.
struct ForwardCode {
  std::size_t (*scratch_bytes)(int head_dim, int value_dim, bool has_bias_tensor);
  void (*run)(const ForwardTask& task);
};
struct TangentsCode {
  std::size_t (*scratch_bytes)(int head_dim, int value_dim, bool has_bias_tensor);
  void (*run)(const TangentsTask& task);
};
struct BackwardCode {
  std::size_t (*scratch_bytes)(int head_dim, int value_dim, bool has_bias_tensor);
  std::int64_t (*padded_head_dim)(int head_dim);
  void (*prepare)(const PrepareTask& task);
  void (*run)(const BackwardTask& task);
};

}  // namespace flashmask::cpu
