// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/views/change.h"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"

namespace flashmask::cuda {

/// What a block of the launch for the gradient of a bias sums: a tile of scores, the tiles of a column of tiles where
/// rows share values, or those of a diagonal where rows share a table of distances.
enum class BiasSums { tiles, columns, diagonals };

/// The arguments of the launch for the gradient of a bias. A list: the values of one batch entry and query head of the
/// bias, which several heads of the problem may share.
struct BiasGradientArguments {
  TensorRows q, k, v, grad_o;
  BackwardStatistics statistics;
  int key_length, query_heads;
  int head_ratio;            // query heads that share a key head
  bool narrow;               // no head has more than 32 dims: one chunk holds those of q and k and those of v
  int score_chunks, chunks;  // of 64 dims: those of q and k, and with those of v
  int row_tiles, column_tiles;
  int list_batches, list_heads;  // that share a list
  int lists_across;              // lists of a batch entry
  int parts;                     // of the batch entries that share a list, each summed by a block of its own
  BiasSums sums;
  bool keeps_bias;  // whether blocks keep their tile of the bias in shared memory, which is a BiasKeepingMemory then
  ScoreArguments score;
  ChangeOperands change;  // for a kernel that is compiled with a change
  TileMapView map;        // by columns of tiles
  struct {
    int rows, columns;
  } map_tile;
  MaskView mask;
  BiasArguments gradient;  // as the bias, of which it has the shape
  void* out;
  float* partial;  // [list][diagonal of tiles][2 · kBiasTile] where those are summed; [list][tile][part][kBiasTile²],
                   // each thread's numbers apart, where there are several parts; null: blocks store what they sum

  /// Where a block begins, its heads over all batch entries, and how many tiles of a head it has.
  struct Place {
    int first_batch, first_head, row_tile, column_tile, heads, tiles;
  };

  /// Places of a list; each takes a block for every part.
  __host__ __device__ int places() const {
    if (sums == BiasSums::columns) return column_tiles;
    if (sums == BiasSums::tiles) return row_tiles * column_tiles;
    return row_tiles == 0 || column_tiles == 0 ? 0 : row_tiles + column_tiles - 1;
  }

  /// `number`: of the place among those of all lists.
  __device__ Place place(int number, int part) const;

  /// Returns the mask's list for a head.
  __device__ int list_of(int batch, int head) const;

  struct TileNeeds {
    bool visit, mask;
  };
  /// Reads from the map what a tile of kBiasTile rows and columns needs, under a list of the mask.
  __device__ TileNeeds needs_of(int list, int row_tile, int column_tile) const;
};

}  // namespace flashmask::cuda
