// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/row_arguments.h"
#include "cuda/scores/score_arguments.h"
#include "cuda/sm80/instructions/tensor_rows.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::sm80 {

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
  BiasSums sums;
  ScoreArguments score;
  TileMapView map;  // by columns of tiles
  TileShape map_tile;
  MaskView mask;
  BiasArguments gradient;  // as the bias, of which it has the shape
  void* out;
  float* diagonals;  // [list][diagonal of tiles][2 · kBiasTile], where those are summed

  /// Where a block begins, and how many tiles of a head it has.
  struct Place {
    int first_batch, first_head, row_tile, column_tile, tiles;
  };

  __host__ __device__ int heads_of_list() const { return list_batches * list_heads; }

  /// Blocks of a list.
  __host__ __device__ int places() const {
    if (sums == BiasSums::columns) return column_tiles;
    if (sums == BiasSums::tiles) return row_tiles * column_tiles;
    return row_tiles == 0 || column_tiles == 0 ? 0 : row_tiles + column_tiles - 1;
  }

  __device__ __forceinline__ Place place(int block) const {
    const int list = block / places(), number = block % places();
    Place found{list / lists_across, list % lists_across, 0, number, row_tiles};
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
                                                     const BackwardStatistics& rows, float* diagonals,
                                                     const TileMapView& map, TileShape map_tile, const MaskView& mask,
                                                     const ScoreArguments& score) {
  const TensorView& to = tensors.grad_bias;
  const auto chunks = [](std::int64_t dims) { return static_cast<int>((dims + 63) / 64); };
  const bool of_rows =
      to.shape[2] == problem.query_length && (problem.query_length != 1 || problem.bias == ScoreBias::tensor);
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
  made.sums = of_rows                                ? BiasSums::tiles
              : problem.bias == ScoreBias::distances ? BiasSums::diagonals
                                                     : BiasSums::columns;
  made.score = score;
  made.map = map;
  made.map_tile = map_tile;
  made.mask = mask;
  made.gradient = bias_arguments(problem, {to, tensors.bias.origin}, 1);
  made.out = to.data;
  made.diagonals = diagonals;
  return made;
}

}  // namespace flashmask::cuda::sm80
