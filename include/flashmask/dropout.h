// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"

namespace flashmask {

/// What the random numbers of one call depend on: the same state repeats a run, and the backward takes the state of
/// its forward.
struct DropoutState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< below 2^32; a training loop counts it up

  friend bool operator==(const DropoutState&, const DropoutState&) = default;
};

/// Where the heads, rows and columns of a call lie in a larger problem, such as that of all ranks of which each
/// computes a part. Decisions then are those of the larger one. Batch entries are the same in both.
struct DropoutPlace {
  std::int64_t first_head = 0;  ///< query head of the larger problem that is the call's first
  std::int64_t heads = 0;       ///< query heads of the larger problem; 0: those of the call
  /// [ceil(query_length / 8)]: which eight rows of the larger problem the call's eight rows are, so that row r of the
  /// call is its row 8 · row_eights[r / 8] + r % 8. Empty: rows have the same numbers in both. On a GPU, whose kernels
  /// look at one number a tile, those of 384 rows from a multiple of 384 on follow one another, or of 128 where the
  /// head dims are 65 to 128 or more than 192.
  std::vector<std::int32_t> row_eights = {};
  std::vector<std::int32_t> column_eights = {};  ///< [ceil(key_length / 8)]: the same of columns
};

/// A place as calls take it: Execution::dropout_place. First head, heads, the eights of rows, the eights of columns;
/// behind each of these lie kDropoutPlaceTail numbers that are read and not used, as kernels read whole tiles. Throws
/// Status::invalid_argument where the place does not fit the problem, or the tiles of its device.
FLASHMASK_API std::vector<std::int32_t> pack(const DropoutPlace& place, const Problem& problem);
inline constexpr std::int64_t kDropoutPlaceTail = 32;

/// Which probabilities of Problem::dropout survive, [batch, query_heads, query_length, key_length], 1 = kept, for
/// reference and tests. A decision is a pure function of (seed, offset, batch, query head, row, column): Philox
/// 4×32-7 (Salmon et al. 2011) with the seed as key and (column / 8, row, batch · query_heads + head, offset) as
/// counter gives eight 16-bit numbers for eight columns; those at or above round(dropout · 65536) are kept. `place`:
/// a packed one; empty: heads, rows and columns are those of `problem`.
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                                       std::span<const std::int32_t> place = {});

/// One query row of it, [key_length].
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                                       std::int64_t batch, std::int64_t head, std::int64_t row,
                                                       std::span<const std::int32_t> place = {});

/// What a kept probability is multiplied by: 1 / (1 − round(dropout · 65536) / 65536).
FLASHMASK_API double dropout_scale(double dropout);

/// What each probability is multiplied by, 0 or dropout_scale(): reference::Inputs::dropout. Empty without dropout.
FLASHMASK_API std::vector<double> dropout_factors(const Problem& problem, const DropoutState& state,
                                                  std::span<const std::int32_t> place = {});

}  // namespace flashmask
