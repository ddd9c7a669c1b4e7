#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmask/problem.h"

/// The caller's memory as the kernels of one backward share it.
namespace flashmask::cuda {

/// Rows of a head in the workspace are rounded up to this, so that tiles of 64 and 128 rows end inside.
constexpr std::int64_t kPaddedRows = 128;

/// What every kernel of the backward wants to know of a row, float32 [batch, query heads, padded rows].
struct RowStatistics {
  float* lse_log2;  ///< lse · log2(e); +∞ for rows that see nothing and for padding: their probabilities become 0
  float* dot;       ///< Σ o · grad_o − grad_lse; 0 for those rows
  std::int64_t padded;  ///< rows of a head
};

struct BackwardWorkspace {
  int* counters;  ///< 0 before the first launch over key tiles: kLaunches of work items, of row tiles, of stretches
  int counter_count;
  RowStatistics rows;
  float* query_sums;  ///< gradients of q before the scale, [batch, query heads, padded rows, kHeadDim], in an order
                      ///< of the column kernel's own inside each of its row tiles; null where there are none
  std::size_t bytes;

  static constexpr int kLaunches = 3;  ///< that take work items, at most
  int* taken_rows() const { return counters + kLaunches; }
  int* stretches() const { return counters + kLaunches + 1; }

  /// head_dim: that of the kernel; 0: no sums. Without memory only `bytes` is of use.
  BackwardWorkspace(const Problem& problem, std::int64_t head_dim, std::byte* memory);
};

}  // namespace flashmask::cuda
