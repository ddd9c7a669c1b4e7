// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/row_arguments.h"
#include "cuda/instructions/tensor_rows.h"
#include "cuda/scores/score_arguments.h"
#include "flashmask/attention.h"

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
  int score_chunks, chunks;  // of 64 dims: those of q and k, and with those of v
  int row_tiles, column_tiles;
  int list_batches, list_heads;  // that share a list
  int lists_across;              // lists of a batch entry
  int parts;                     // of the batch entries that share a list, each summed by a block of its own
  BiasSums sums;
  ScoreArguments score;
  TileMapView map;  // by columns of tiles
  TileShape map_tile;
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
  __device__ __forceinline__ Place place(int number, int part) const {
    const int list = number / places();
    number %= places();
    const int from = list_batches * part / parts, until = list_batches * (part + 1) / parts;
    Place found{list / lists_across + from, list % lists_across, 0, number, (until - from) * list_heads, row_tiles};
    if (sums == BiasSums::tiles) {
      found.row_tile = number / column_tiles;
      found.column_tile = number % column_tiles;
      found.tiles = 1;
    } else if (sums == BiasSums::diagonals) {
      const int distance = number - (column_tiles - 1);  // between tiles, row − column
      found.row_tile = max(distance, 0);
      found.column_tile = found.row_tile - distance;
      found.tiles = min(row_tiles - found.row_tile, column_tiles - found.column_tile);
    }
    return found;
  }
};

/// Makes the arguments of a launch whose map, by columns, has tiles of map_tile.
inline BiasGradientArguments bias_gradient_arguments(const Problem& problem, const BackwardTensors& tensors,
                                                     const BackwardStatistics& rows, float* partial,
                                                     const TileMapView& map, TileShape map_tile, const MaskView& mask,
                                                     const ScoreArguments& score) {
  const TensorView& to = tensors.grad_bias;
  const auto chunks = [](std::int64_t dims) { return static_cast<int>((dims + 63) / 64); };
  const bool of_rows =
      to.shape[2] == problem.query_length && (problem.query_length != 1 || problem.change.bias() == ScoreBias::tensor);
  BiasGradientArguments made{};
  made.q = tensor_rows(tensors.q);
  made.k = tensor_rows(tensors.k);
  made.v = tensor_rows(tensors.v);
  made.grad_o = tensor_rows(tensors.grad_o);
  made.statistics = rows;
  made.key_length = static_cast<int>(problem.key_length);
  made.query_heads = static_cast<int>(problem.query_heads);
  made.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  made.score_chunks = chunks(problem.head_dim);
  made.chunks = made.score_chunks + chunks(problem.value_dim);
  made.row_tiles = static_cast<int>(bias_tiles(problem.query_length));
  made.column_tiles = static_cast<int>(bias_tiles(problem.key_length));
  made.list_batches = static_cast<int>(to.shape[0] == 1 ? problem.batch : 1);
  made.list_heads = static_cast<int>(to.shape[1] == 1 ? problem.query_heads : 1);
  made.lists_across = static_cast<int>(to.shape[1]);
  made.sums = of_rows                                         ? BiasSums::tiles
              : problem.change.bias() == ScoreBias::distances ? BiasSums::diagonals
                                                              : BiasSums::columns;
  made.score = score;
  made.map = map;
  made.map_tile = map_tile;
  made.mask = mask;
  made.gradient = bias_arguments(problem, {to, tensors.bias.origin}, 1);
  made.out = to.data;
  made.parts = made.sums == BiasSums::tiles && made.list_batches > 1 ? static_cast<int>(bias_parts(problem)) : 1;
  made.partial = partial;
  return made;
}

}  // namespace flashmask::cuda
