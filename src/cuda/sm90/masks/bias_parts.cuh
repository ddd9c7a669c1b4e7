// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/scores/bias_values.cuh"
#include "cuda/sm90/instructions/ptx.h"

namespace flashmask::cuda::sm90 {

/// Adds the values of a bias tensor to the scores of one unit, a part of them in each round of a loop: unrolled, the
/// addresses of all values would take registers that kernels with wgmma do not have. Place: PlaceByRows or
/// TransposedPlace.
template <int kEights, class Place>
class BiasParts {
  static constexpr int kPart = Place::kPairsColumns && kEights % 8 == 0 ? 4 : 2, kParts = kEights / kPart;  // eights
  using Part = float[kPart][4];

 public:
  __device__ __forceinline__ BiasParts(const BiasArguments& bias, const Place& place)
      : bias_(bias),
        row_(place.row(lane_index())),
        column_(place.column(lane_index())),
        list_(place.batch * bias.batch + place.head * bias.head) {}

  __device__ __forceinline__ void add_to(float (&s)[1][kEights][4]) {
    if constexpr (!Place::kPairsColumns) {
      if (bias_.in_pairs) return add_transposed_to(s);
    }
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      Part values;
      read(values);
#pragma unroll
      for (int known = 0; known < kParts; ++known) {
        if (known != part) continue;
#pragma unroll
        for (int eight = 0; eight < kPart; ++eight)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            s[0][known * kPart + eight][i] = fmaf(values[eight][i], bias_.to_products, s[0][known * kPart + eight][i]);
      }
      (Place::kPairsColumns ? column_ : row_) += 8 * kPart;
    }
  }

 private:
  /// Reads two neighbouring keys at a time, and transposes each eight of rows by eight of keys between lanes.
  __device__ __forceinline__ void add_transposed_to(float (&s)[1][kEights][4]) const {
    constexpr int kPairsPart = 4;
    const int lane = lane_index(), line = lane / 4, place = lane % 4 * 2;
    const int row = row_ - place + line, column = column_ - line + place;
    const auto* from = static_cast<const std::uint16_t*>(bias_.values) + list_ + row * bias_.row + column;
    int rows_left = bias_.query_length - row;
#pragma unroll 1
    for (int part = 0; part < kEights / kPairsPart; ++part) {
      std::uint32_t words[kPairsPart][2];
#pragma unroll
      for (int eight = 0; eight < kPairsPart; ++eight)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool exists = 8 * eight < rows_left && column + 8 * half < bias_.key_length;
          const auto* const pair = reinterpret_cast<const std::uint32_t*>(from + 8 * eight * bias_.row + 8 * half);
          words[eight][half] = exists ? __ldg(pair) : 0;
        }
#pragma unroll
      for (int known = 0; known < kEights / kPairsPart; ++known) {
        if (known != part) continue;
#pragma unroll
        for (int eight = 0; eight < kPairsPart; ++eight)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 numbers = ShortValues::numbers(bias_, transpose_matrix(words[eight][half]));
            float(&four)[4] = s[0][known * kPairsPart + eight];
            four[2 * half] = fmaf(numbers.x, bias_.to_products, four[2 * half]);
            four[2 * half + 1] = fmaf(numbers.y, bias_.to_products, four[2 * half + 1]);
          }
      }
      from += 8 * kPairsPart * bias_.row;
      rows_left -= 8 * kPairsPart;
    }
  }

  __device__ __forceinline__ void read(Part& values) const {
    if (Place::kPairsColumns && bias_.in_pairs)
      read_pairs(values);
    else if (bias_.dtype == DType::f32)
      read_each<WideValues>(values);
    else
      read_each<ShortValues>(values);
  }

  __device__ __forceinline__ void read_pairs(Part& values) const {
    const auto* const first = static_cast<const std::uint16_t*>(bias_.values) + list_ + row_ * bias_.row + column_;
#pragma unroll
    for (int eight = 0; eight < kPart; ++eight)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int down = Place::rows_to(0, eight, i), right = Place::columns_to(0, eight, i);
        const bool exists = row_ + down < bias_.query_length && column_ + right < bias_.key_length;
        const auto* const from = reinterpret_cast<const std::uint32_t*>(first + down * bias_.row + right);
        const float2 numbers = ShortValues::numbers(bias_, exists ? __ldg(from) : 0);
        values[eight][i] = numbers.x;
        values[eight][i + 1] = numbers.y;
      }
  }

  template <class Values>
  __device__ __forceinline__ void read_each(Part& values) const {
    using Word = typename Values::Word;
    const int first = bias_.entry(row_, column_), of_row = bias_.distances ? 1 : 0, of_column = 1 - 2 * of_row;
    const Word* const from = static_cast<const Word*>(bias_.values) + list_ + row_ * bias_.row + first;
#pragma unroll
    for (int eight = 0; eight < kPart; ++eight)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int down = Place::rows_to(0, eight, i),
                  further = down * of_row + Place::columns_to(0, eight, i) * of_column;
        const bool exists = row_ + down < bias_.query_length &&
                            static_cast<unsigned>(first + further) < static_cast<unsigned>(bias_.entries);
        values[eight][i] = Values::number(bias_, exists ? __ldg(from + down * bias_.row + further) : Word{});
      }
  }

  const BiasArguments& bias_;
  int row_, column_;  // of the lane's first score of a part
  std::int64_t list_;
};

}  // namespace flashmask::cuda::sm90
