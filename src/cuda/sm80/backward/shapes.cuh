// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/scores/changes.h"
#include "cuda/sm80/backward/column_shape.cuh"
#include "cuda/sm80/backward/query_gradient_kernel.cuh"

/// The shapes of the kernels, by head dim: for blocks of up to 163 KB of shared memory and, compact, of up to 99 KB.
namespace flashmask::cuda::sm80 {

template <int kHeadDim>
struct LargeForm;
/// For devices with enough shared memory: fewer barriers of the whole block, the same tile and the same order of sums.
/// None where LargeForm has them and takes no more than any device gives.
template <int kHeadDim>
struct RoomyForm;
template <int kHeadDim>
struct ShortForm;
template <int kHeadDim>
struct CompactForm;

/// Takes 66 KB: registers are for three blocks.
template <>
struct LargeForm<32> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 4, .score_rows = 16, .blocks = 3, .delayed = true};
};
/// Takes no more than 99 KB.
template <>
struct LargeForm<64> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 4, .blocks = 2, .delayed = true};
};
template <>
struct LargeForm<96> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 4, .sharers = 2, .delayed = true};
};
template <>
struct LargeForm<128> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 4, .sharers = 2};
};
template <>
struct RoomyForm<128> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 4, .sharers = 2, .delayed = true};
};
template <>
struct LargeForm<192> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 2, .sharers = 4, .score_rows = 16, .stages = 1};
};
template <>
struct RoomyForm<192> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 2, .sharers = 4, .score_rows = 16, .delayed = true};
};
template <>
struct LargeForm<256> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 2, .sharers = 4, .score_rows = 16, .stages = 1};
};
template <>
struct RoomyForm<256> {
  static constexpr ColumnForm kForm{.units = 2, .groups = 2, .sharers = 4, .score_rows = 16, .delayed = true};
};
/// For short rows: tiles of 64 keys, two blocks per multiprocessor where 182 KB are free for them.
template <>
struct ShortForm<128> {
  static constexpr ColumnForm kForm{
      .units = 2, .groups = 2, .sharers = 2, .stages = 1, .blocks = 2, .delayed = true, .short_rows = true};
};
template <>
struct CompactForm<96> {
  static constexpr ColumnForm kForm{.units = 1, .groups = 8, .score_rows = 64, .holds_values = true};
};
template <>
struct CompactForm<128> {
  static constexpr ColumnForm kForm{.units = 1, .groups = 8, .rows = 32, .delayed = true, .holds_values = true};
};

template <class T, int kHeadDim>
using LargeColumns = ColumnShape<T, kHeadDim, LargeForm<kHeadDim>>;
template <class T, int kHeadDim>
using RoomyColumns =
    ColumnShape<T, kHeadDim, std::conditional_t<kHeadDim <= 96, LargeForm<kHeadDim>, RoomyForm<kHeadDim>>>;
template <class T, int kHeadDim>
using ShortColumns = ColumnShape<T, kHeadDim, ShortForm<kHeadDim>>;
template <class T, int kHeadDim>
using CompactColumns = ColumnShape<T, kHeadDim, CompactForm<kHeadDim>>;

/// Shapes for the gradient of q alone: 16 rows per warp where registers hold no more, one buffer of k and v where there
/// is no room for two.
template <class T, int kHeadDim, int kStages>
using RowsOf = QueryGradientShape<T, kHeadDim, kHeadDim <= 128 ? 2 : 1, kHeadDim <= 64 ? 1 : 2, kStages,
                                  kHeadDim <= 32   ? 3
                                  : kHeadDim == 64 ? 2
                                                   : 1>;
template <class T, int kHeadDim>
using LargeRows = RowsOf<T, kHeadDim, kHeadDim == 256 ? 1 : 2>;
template <class T, int kHeadDim>
using RoomyRows = RowsOf<T, kHeadDim, 2>;
template <class T, int kHeadDim>
using CompactRows = QueryGradientShape<T, kHeadDim, 1, 2, kHeadDim == 128 ? 1 : 2, 1>;

}  // namespace flashmask::cuda::sm80

namespace flashmask::cuda {

/// Registers of warps with 32 keys hold fewer rows of scores at once where these are changed: at 64 dims, where the
/// gradient of q is delayed at 128, and beside dropout up to 128.
template <class T, int kHeadDim, class Of>
struct Changing<sm80::ColumnShape<T, kHeadDim, Of>> : sm80::ColumnShape<T, kHeadDim, Of> {
  static constexpr bool kScoreChanges = true;
  static constexpr bool kFewer = kHeadDim == 64 || (kHeadDim == 128 && Of::kForm.delayed);
  static constexpr int kScoreRows = Of::kForm.units == 2 && kFewer ? 16 : Of::kForm.score_rows;
};
template <class T, int kHeadDim, class Of>
struct Changing<Dropping<sm80::ColumnShape<T, kHeadDim, Of>>> : Dropping<sm80::ColumnShape<T, kHeadDim, Of>> {
  static constexpr bool kScoreChanges = true;
  static constexpr int kScoreRows = Of::kForm.units == 2 && kHeadDim <= 128 ? 16 : Of::kForm.score_rows;
};
template <class T, int kHeadDim, class Of, class Change_>
struct Changed<sm80::ColumnShape<T, kHeadDim, Of>, Change_> : sm80::ColumnShape<T, kHeadDim, Of> {
  using Change = Change_;
  static constexpr int kScoreRows = Changing<sm80::ColumnShape<T, kHeadDim, Of>>::kScoreRows;
};
template <class T, int kHeadDim, class Of, class Change_>
struct Changed<Dropping<sm80::ColumnShape<T, kHeadDim, Of>>, Change_> : Dropping<sm80::ColumnShape<T, kHeadDim, Of>> {
  using Change = Change_;
  static constexpr int kScoreRows = Changing<Dropping<sm80::ColumnShape<T, kHeadDim, Of>>>::kScoreRows;
};

}  // namespace flashmask::cuda
