// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/views/tensors.h"
#include "flashmask/problem.h"

/// How the kernels of one backward share the caller's memory.
namespace flashmask::cuda {

/// The rows of a head are padded to a multiple of this in the workspace, so that tiles of 64 and 128 rows fit inside.
constexpr std::int64_t kPaddedRows = 128;

/// Rows whose contributions to the gradient of a sink one block adds up.
constexpr std::int64_t kSinkRows = 4096;

/// Returns how many the scores of a batch entry take, over all query heads.
constexpr std::int64_t bias_tiles(const Problem& problem) {
  return problem.query_heads * bias_tiles(problem.query_length) * bias_tiles(problem.key_length);
}

/// Returns in how many parts the batch is cut, each summed apart, for the gradient of a bias that all its entries
/// share: where scores have few tiles, these alone would not keep a GPU busy. Never depends on the GPU, as rounding
/// would.
inline std::int64_t bias_parts(const Problem& problem) {
  constexpr std::int64_t kBlocks = 512;
  const std::int64_t tiles = bias_tiles(problem);
  return problem.change.bias() == ScoreBias::tensor && tiles > 0 && 2 * tiles <= kBlocks && problem.batch > 1
             ? std::min(kBlocks / tiles, problem.batch)
             : 1;
}

struct BackwardWorkspace {
  int* counters;  ///< zeroed before the first launch over key tiles: work items of each launch, row tiles, bundles
  int counter_count;
  BackwardStatistics rows;
  float* query_sums;  ///< gradients of q, not scaled yet, [batch, query heads, padded rows, kHeadDim]; inside a row
                      ///< tile in the order of the kernel's add_to_queries(); null where the kernel makes no sums
  float* sink_sums;   ///< [batch, query heads, sink_pieces]: what each kSinkRows rows add to the gradient of a sink
  std::int64_t sink_pieces;
  float* bias_sums;  ///< [batch, query heads, diagonals of tiles, 2 kBiasTile] at most: sums of a table of distances;
                     ///< or [tiles of all heads, bias_parts(), kBiasTile²] where there are several parts; null where
                     ///< the problem needs none
  std::size_t bytes;

  static constexpr int kLaunches = 3;  ///< most launches of one backward; each counts its work items
  int* taken_rows() const { return counters + kLaunches; }
  int* bundles() const { return counters + kLaunches + 1; }

  /// head_dim: the kernel's, or 0 where it makes no sums. With memory = nullptr only sizes are meaningful.
  BackwardWorkspace(const Problem& problem, std::int64_t head_dim, std::byte* memory);
};

}  // namespace flashmask::cuda
