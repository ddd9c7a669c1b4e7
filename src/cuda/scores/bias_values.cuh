// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/instructions/lane_exchanges.cuh"
#include "cuda/instructions/mma.h"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/scores.h"

/// Scores to which the values of a bias tensor are added.
namespace flashmask::cuda {

/// Reads float32.
struct WideValues {
  using Word = float;
  static __device__ __forceinline__ float number(const BiasArguments&, float word) { return word; }
};
/// Reads bfloat16 or float16.
struct ShortValues {
  using Word = std::uint16_t;
  static __device__ __forceinline__ float2 numbers(const BiasArguments& bias, std::uint32_t pair) {
    return bias.dtype == DType::f16 ? unpack<__half>(pair) : unpack<__nv_bfloat16>(pair);
  }
  static __device__ __forceinline__ float number(const BiasArguments& bias, std::uint16_t word) {
    return numbers(bias, word).x;
  }
};

/// Reads number `at` of a bias's values.
__device__ __forceinline__ float bias_number(const BiasArguments& bias, std::int64_t at) {
  if (bias.dtype == DType::f32) return __ldg(static_cast<const float*>(bias.values) + at);
  return ShortValues::number(bias, __ldg(static_cast<const std::uint16_t*>(bias.values) + at));
}

/// The values of a lane's scores of one tile. Place: PlaceByRows or TransposedPlace (tile_scores.cuh).
template <int kUnits, int kEights, class Place>
class BiasValues {
 public:
  __device__ __forceinline__ BiasValues(const BiasArguments& bias, const Place& place) : bias_(bias), place_(place) {}

  /// Starts to bring the values to the L1 cache: a lane asks for those of a row.
  __device__ __forceinline__ void prefetch() const {
    constexpr int kRows = Place::kPairsColumns ? 16 * kUnits : 8 * kEights,
                  kColumns = Place::kPairsColumns ? 8 * kEights : 16 * kUnits;
    const int bytes = bias_.dtype == DType::f32 ? 4 : 2;
    const int last_column = min(place_.first_column + kColumns, bias_.key_length) - 1;
#pragma unroll
    for (int of_tile = lane_index(); of_tile < kRows; of_tile += 32)
      prefetch_row<kColumns>(place_.first_row + of_tile, last_column, bytes);
  }

  /// Calls body(unit, eight, i, value) for each score of the lane with the value that is added to it; where it has
  /// none, 0.
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    if constexpr (kTakesEights) {
      if (bias_.in_eights) return for_each_eight(body);
    }
    if constexpr (Place::kPairsColumns) {
      if (bias_.in_pairs) return for_each_pair(body);
    }
    if (bias_.dtype == DType::f32)
      for_each_of<WideValues>(body);
    else
      for_each_of<ShortValues>(body);
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void prefetch_row(int row, int last_column, int bytes) const {
    if (row >= bias_.query_length) return;
    const int one = bias_.entry(row, place_.first_column), other = bias_.entry(row, last_column);
    const int first = max(min(one, other), 0), last = min(max(one, other), bias_.entries - 1);
    if (first > last) return;
    const auto* const values = static_cast<const std::uint8_t*>(bias_.values) + at(row) * bytes;
    constexpr int kLine = 128;
#pragma unroll
    for (int at = 0; at < 4 * kColumns; at += kLine)
      if (first * bytes + at < last * bytes) prefetch_line(values + first * bytes + at);
    prefetch_line(values + last * bytes);
  }

  template <class Values, class Body>
  __device__ __forceinline__ void for_each_of(const Body& body) const {
    if (bias_.distances)
      for_each_of<Values, true>(body);
    else
      for_each_of<Values, false>(body);
  }

  template <class Values, bool kDistances, class Body>
  __device__ __forceinline__ void for_each_of(const Body& body) const {
    using Word = typename Values::Word;
    for_each_part([&](int row, int column, const auto& for_each_place) {
      const int start = kDistances ? row - column + bias_.shift : column;
      const int end = kDistances ? bias_.entries : bias_.key_length;
      const Word* const first = row_of<Word>(row) + start;
      for_each_place([&](int unit, int eight, int i) {
        const int down = Place::rows_to(unit, eight, i), right = Place::columns_to(unit, eight, i);
        const int further = kDistances ? down - right : right;
        const int last = row + down < bias_.query_length ? end : 0;
        const bool exists = static_cast<unsigned>(start + further) < static_cast<unsigned>(last);
        const Word word = exists ? __ldg(first + down * bias_.row + further) : Word{};
        body(unit, eight, i, Values::number(bias_, word));
      });
    });
  }

  template <class Body>
  __device__ __forceinline__ void for_each_pair(const Body& body) const {
    for_each_pair([&](std::uint32_t word) { return ShortValues::numbers(bias_, word); }, body);
  }

  template <class Body>
  __device__ __forceinline__ void for_each_eight(const Body& body) const {
    for_each_eight([&](std::uint32_t word) { return ShortValues::numbers(bias_, word); }, body);
  }

 public:
  /// Whether the lanes of a row load 32 neighbours of it at once, as the tile has so many columns side by side.
  static constexpr bool kTakesEights = Place::kTakesEights && (Place::kPairsColumns ? kEights : 2 * kUnits) % 4 == 0;

  /// Do what for_each() does where values come in pairs or eights; numbers(word) unpacks two of them.
  template <class Numbers, class Body>
  __device__ __forceinline__ void for_each_pair(const Numbers& numbers, const Body& body) const {
    for_each_part([&](int row, int column, const auto& for_each_place) {
      const std::uint16_t* const first = row_of<std::uint16_t>(row) + column;
      for_each_place([&](int unit, int eight, int i) {
        if (i % 2 != 0) return;
        const int down = Place::rows_to(unit, eight, i), right = Place::columns_to(unit, eight, i);
        const bool exists = column + right < (row + down < bias_.query_length ? bias_.key_length : 0);
        const auto* const from = reinterpret_cast<const std::uint32_t*>(first + down * bias_.row + right);
        const float2 two = numbers(exists ? __ldg(from) : 0);
        body(unit, eight, i, two.x);
        body(unit, eight, i + 1, two.y);
      });
    });
  }
  template <class Numbers, class Body>
  __device__ __forceinline__ void for_each_eight(const Numbers& numbers, const Body& body) const {
    constexpr int kDown = Place::kPairsColumns ? 2 * kUnits : kEights;
    constexpr int kAcross = (Place::kPairsColumns ? kEights : 2 * kUnits) / 4;
#pragma unroll
    for (int down = 0; down < kDown; ++down)
#pragma unroll
      for (int across = 0; across < kAcross; ++across) {
        if ((down * kAcross + across) % kLoads == 0) __syncwarp();
        std::uint32_t words[4];
        load_eights(words, down, across);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int matrix = 4 * across + i;
          const float2 two = numbers(arranged(words[i]));
          const int unit = (Place::kPairsColumns ? down : matrix) / 2, eight = Place::kPairsColumns ? matrix : down;
          const int first = (Place::kPairsColumns ? down : matrix) % 2 * 2;
          body(unit, eight, first, two.x);
          body(unit, eight, first + 1, two.y);
        }
      }
  }

  /// Loads what scores of eight rows and 32 columns get, two 16-bit values a word, for arranged(). Eight rows of 32
  /// values are four matrices of 8 × 8: a lane loads 16 bytes of a row, and the lanes of a row exchange words. A load
  /// of every pair by the lane that adds it would take four times as many, each of as many cache lines.
  __device__ __forceinline__ void load_eights(std::uint32_t (&words)[4], int down, int across) const {
    const int lane = lane_index(), row = place_.first_row + 8 * down + lane / 4,
              column = place_.first_column + 32 * across + lane % 4 * 8;
    const std::int64_t at =
        times(place_.batch, bias_.batch) + times(place_.head, bias_.head) + times(row, bias_.row) + column;
    // Lane 4 g + q loads row g, columns 8 q to 8 q + 7, and gets columns 2 q and 2 q + 1 of each of four matrices.
    load_16(words, static_cast<const std::uint16_t*>(bias_.values) + at,
            row < bias_.query_length && column < bias_.key_length);
    transpose_in_quad(words, lane % 4);
  }
  /// Returns one of these words for the scores' own lanes.
  static __device__ __forceinline__ std::uint32_t arranged(std::uint32_t word) {
    return Place::kPairsColumns ? word : transpose_matrix(word);
  }

 private:
  /// Multiplies a number by a stride that fits 32 bits, in one instruction: registers have no room to keep an address
  /// from load to load.
  static __device__ __forceinline__ std::int64_t times(int number, std::int64_t stride) {
    return std::int64_t{number} * static_cast<int>(stride);
  }

  /// The loads that for_each_eight() may have under way at once, as registers allow.
  static constexpr int kLoads = 2;

  template <class Word>
  __device__ __forceinline__ const Word* row_of(int row) const {
    return static_cast<const Word*>(bias_.values) + at(row);
  }
  __device__ __forceinline__ std::int64_t at(int row) const {
    return place_.batch * bias_.batch + place_.head * bias_.head + row * bias_.row;
  }

  /// Calls body(row, column, for_each_place) for each part of the lane's scores; for_each_place calls its body(unit,
  /// eight, i) for the scores of the part. Row and column are those of the lane's first score. A part's loads are
  /// finished, and its addresses forgotten, before the next part's begin: registers hold no more.
  template <class Body>
  __device__ __forceinline__ void for_each_part(const Body& body) const {
    // Each part spans as few rows as possible.
    constexpr int kLines = Place::kPairsColumns ? 1 : kUnits, kPart = !Place::kPairsColumns             ? 1
                                                                      : kUnits == 2 && kEights % 4 == 0 ? 4
                                                                                                        : 2;
#pragma unroll
    for (int first_line = 0; first_line < 2 * kUnits; first_line += kLines)
#pragma unroll
      for (int first = 0; first < kEights; first += kPart) {
        __syncwarp();
        const int lane = lane_index();
        body(place_.row(lane), place_.column(lane), [&](const auto& of_place) {
#pragma unroll
          for (int line = first_line; line < first_line + kLines; ++line)
#pragma unroll
            for (int eight = first; eight < first + kPart; ++eight)
#pragma unroll
              for (int i = 0; i < 2; ++i) of_place(line / 2, eight, line % 2 * 2 + i);
        });
      }
  }

  const BiasArguments& bias_;
  const Place& place_;
};

}  // namespace flashmask::cuda
