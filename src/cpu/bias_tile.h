// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/compiler.h"
#include "cpu/half.h"
#include "cpu/kernel_tasks.h"
#include "cpu/prefetch.h"
#include "cpu/scalar_vector.h"
#include "cpu/tile_memory.h"

namespace flashmask::cpu {

/// Calls body(values as In) for the dtype of a bias.
template <class Body>
FLASHMASK_INLINE void with_bias_type(DType dtype, const void* data, const Body& body) {
  if (dtype == DType::f32) {
    body(static_cast<const float*>(data));
  } else if (dtype == DType::bf16) {
    body(static_cast<const Bf16*>(data));
  } else {
    body(static_cast<const F16*>(data));
  }
}
template <class Body>
FLASHMASK_INLINE void with_bias_type(DType dtype, void* data, const Body& body) {
  if (dtype == DType::f32) {
    body(static_cast<float*>(data));
  } else if (dtype == DType::bf16) {
    body(static_cast<Bf16*>(data));
  } else {
    body(static_cast<F16*>(data));
  }
}

/// What a bias tensor adds to the scores of a tile of kRows × kColumns, as float32, 0 past the tokens that exist.
/// Lines are rows and lanes columns, or where kTransposed the other way round.
template <class Isa, int kRows, int kColumns, bool kTransposed>
class BiasTile {
 public:
  /// Takes memory if the problem has a bias tensor.
  FLASHMASK_INLINE void take(Scratch& scratch, bool present) {
    if (!present) return;
    values_ = scratch.take<float>(kRows * kStride);
    if constexpr (kTransposed) transposed_ = scratch.take<float>(kRows * kColumns);
  }

  /// What is added to the scores of a line, from `lane` on; null before anything is read.
  FLASHMASK_INLINE const float* at(int line, int lane) const {
    return first_ == nullptr ? nullptr : first_ + line * line_stride_ + lane;
  }
  FLASHMASK_INLINE std::int64_t line_stride() const { return line_stride_; }

  FLASHMASK_INLINE void read(const HeadValues& bias, const TileBounds& tile) {
    if (bias.entries > 0 && bias.row_stride == 0) {
      with_bias_type(bias.dtype, bias.data,
                     [&](auto* row) FLASHMASK_INLINE_LAMBDA { read_diagonals(row, bias, tile); });
      return;
    }
    with_bias_type(bias.dtype, bias.data, [&](auto* row) FLASHMASK_INLINE_LAMBDA {
      if (transposes_in_place(row, bias, tile)) {
        transpose(reinterpret_cast<const float*>(row) + tile.row_token * bias.row_stride + tile.column_token,
                  bias.row_stride);
        return;
      }
      const std::int64_t rows = bias.row_stride == 0 ? 1 : kRows;
      for (int r = 0; r < rows; ++r) {
        const auto* of_row = row + (tile.row_token + r) * bias.row_stride;
        const int columns = r < tile.rows ? tile.columns : 0;
        if (bias.entries > 0) {
          read_distances(of_row, bias.entries, tile.row_token + r - tile.column_token + bias.shift, columns,
                         values_ + r * kStride);
        } else {
          read_columns(of_row + (columns > 0 ? tile.column_token : 0), columns, values_ + r * kStride);
        }
      }
      if constexpr (kTransposed) {
        if (bias.row_stride == 0)
          repeat_row();
        else
          transpose(values_, kStride);
      } else {
        first_ = values_;
        line_stride_ = bias.row_stride == 0 ? 0 : kStride;
      }
    });
  }

  /// Starts to prefetch the values of the rows of a tile in the columns behind it.
  static FLASHMASK_INLINE void prefetch_next(Prefetch& prefetch, const HeadValues& bias, const TileBounds& tile,
                                             std::int64_t columns) {
    const std::int64_t left = columns - tile.column_token - kColumns;
    if (bias.row_stride == 0 || bias.entries > 0 || left <= 0) return;
    const auto element = static_cast<std::int64_t>(bias.dtype == DType::f32 ? sizeof(float) : sizeof(Bf16));
    const std::int64_t offset = tile.row_token * bias.row_stride + tile.column_token + kColumns;
    prefetch.begin(static_cast<const std::byte*>(bias.data) + offset * element, bias.row_stride * element, tile.rows,
                   (left < kColumns ? left : kColumns) * element);
  }

 private:
  /// A line longer than a row, so that the lines of a tile do not share a cache set.
  static constexpr std::int64_t kStride = kColumns + 16;

  template <class In>
  static FLASHMASK_INLINE void read_columns(const In* from, int count, float* to) {
    for (int c = 0; c < kColumns; c += Isa::lanes) {
      if (c + Isa::lanes <= count) {
        Isa::store(to + c, Isa::widen(from + c));
      } else {
        Isa::store(to + c, c < count ? Isa::widen_tail(from + c, count - c) : Isa::broadcast(0.0f));
      }
    }
  }

  /// Reads entries `last`, last − 1, …, where they exist.
  template <class In>
  static FLASHMASK_INLINE void read_distances(const In* from, std::int64_t entries, std::int64_t last, int count,
                                              float* to) {
    const std::int64_t begin = last >= entries ? last - entries + 1 : 0, end = last < count ? last + 1 : count;
    for (int c = 0; c < kColumns; ++c) to[c] = 0.0f;
    for (std::int64_t c = begin; c < end; ++c) to[c] = Scalar::widen_one(from[last - c]);
  }

  /// Reads a table that all rows share: the lines are the same entries, each shifted by one against the next.
  template <class In>
  FLASHMASK_INLINE void read_diagonals(const In* from, const HeadValues& bias, const TileBounds& tile) {
    constexpr int kCount = kRows + kColumns - 1, kLines = kTransposed ? kColumns : kRows;
    // Ascending lanes are ascending rows, and entries, in a transposed tile; ascending columns, and descending entries,
    // in another one.
    const std::int64_t corner = tile.row_token - tile.column_token + bias.shift;
    const std::int64_t first = kTransposed ? corner - (kColumns - 1) : corner + (kRows - 1);
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t entry = kTransposed ? first + i : first - i;
      values_[i] = entry >= 0 && entry < bias.entries ? Scalar::widen_one(from[entry]) : 0.0f;
    }
    first_ = values_ + kLines - 1;
    line_stride_ = -1;
  }

  /// Whether a tile can be transposed out of the tensor itself.
  template <class In>
  static FLASHMASK_INLINE bool transposes_in_place(const In*, const HeadValues& bias, const TileBounds& tile) {
    return kTransposed && std::is_same_v<In, float> && bias.entries == 0 && bias.row_stride != 0 &&
           tile.rows == kRows && tile.columns == kColumns;
  }

  FLASHMASK_INLINE void repeat_row() {
    for (int c = 0; c < kColumns; ++c)
      for (int r = 0; r < kRows; r += Isa::lanes) Isa::store(transposed_ + c * kRows + r, Isa::broadcast(values_[c]));
    first_ = transposed_;
    line_stride_ = kRows;
  }

  FLASHMASK_INLINE void transpose(const float* from, std::int64_t stride) {
    using Unit = typename Isa::Unit;
    static_assert(sizeof(Unit) == sizeof(float));
    for (int r = 0; r < kRows; r += Isa::lanes)
      for (int c = 0; c < kColumns; c += Isa::lanes)
        Isa::transpose(reinterpret_cast<const Unit*>(from + r * stride + c), stride,
                       reinterpret_cast<Unit*>(transposed_ + c * kRows + r), kRows);
    first_ = transposed_;
    line_stride_ = kRows;
  }

  float *values_ = nullptr, *transposed_ = nullptr;
  const float* first_ = nullptr;
  std::int64_t line_stride_ = 0;
};

}  // namespace flashmask::cpu
