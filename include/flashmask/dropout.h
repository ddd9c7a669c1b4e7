// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/problem.h"

namespace flashmask {

/// The state that the random numbers of one call depend on: the same state repeats a run, and the backward takes the
/// state of its forward.
struct DropoutState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  ///< below 2^32; a training loop increments it

  friend bool operator==(const DropoutState&, const DropoutState&) = default;
};

/// Where the heads, rows and columns of a call lie in a larger problem, such as one whose parts several ranks compute.
/// Dropout decisions are then those of the larger problem. Batch entries are the same in both.
struct DropoutPlace {
  std::int64_t first_head = 0;  ///< which query head of the larger problem is the call's first
  std::int64_t heads = 0;       ///< query heads of the larger problem; 0: as many as the call has
  /// [ceil(query_length / 8)]: for every eight rows of the call, which eight rows of the larger problem they are: row r
  /// of the call is row 8 · row_eights[r / 8] + r % 8 there. Empty: rows have the same numbers in both. Kernels on a
  /// GPU read one number per tile, so there the numbers of every 384 rows, from a multiple of 384 on, must be
  /// consecutive, or of every 128 rows where the larger of head_dim and value_dim is 65 to 128 or more than 192.
  std::vector<std::int32_t> row_eights = {};
  std::vector<std::int32_t> column_eights = {};  ///< [ceil(key_length / 8)]: the same for columns
};

/// Packs a place for Execution::dropout_place: first head, heads, row_eights, column_eights. After each of the last two
/// lie kDropoutPlaceTail numbers that are read but not used, as kernels read whole tiles. Throws
/// Status::invalid_argument where the place does not fit the problem, or the tiles of its device.
FLASHMASK_API std::vector<std::int32_t> pack(const DropoutPlace& place, const Problem& problem);
inline constexpr std::int64_t kDropoutPlaceTail = 32;

/// Returns which probabilities survive Problem::dropout, [batch, query_heads, query_length, key_length], 1 = kept, for
/// the reference and tests. A decision is a pure function of (seed, offset, batch, query head, row, column): Philox
/// 4×32-7 (Salmon et al. 2011) with the seed as key and (column / 8, row, batch · query_heads + head, offset) as
/// counter gives eight 16-bit numbers for eight columns; those at or above round(dropout · 65536) are kept. `place`:
/// a packed DropoutPlace; empty: heads, rows and columns are those of `problem`.
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                                       std::span<const std::int32_t> place = {});

/// Returns one query row of those decisions, [key_length].
FLASHMASK_API std::vector<std::uint8_t> expand_dropout(const Problem& problem, const DropoutState& state,
                                                       std::int64_t batch, std::int64_t head, std::int64_t row,
                                                       std::span<const std::int32_t> place = {});

/// Returns the factor of kept probabilities: 1 / (1 − round(dropout · 65536) / 65536).
FLASHMASK_API double dropout_scale(double dropout);

/// Returns the factor of each probability, 0 or dropout_scale(), for reference::Inputs::dropout. Empty without dropout.
FLASHMASK_API std::vector<double> dropout_factors(const Problem& problem, const DropoutState& state,
                                                  std::span<const std::int32_t> place = {});

}  // namespace flashmask
