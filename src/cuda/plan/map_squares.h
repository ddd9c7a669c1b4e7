// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/plan/tile_map.h"
#include "plan/device_plan.h"

/// A map of many tiles has two levels, so that it grows with the tokens instead of their square. A square is 32 × 32
/// tiles. For each list and 32 outer tiles there are ⌈inner tiles / 32⌉ numbers of squares, and only squares that are
/// neither visible nor masked throughout have words of their own: for each of the 32 outer tiles that of its partial
/// inner tiles and that of its full ones. There is room for so many; those that find none count as partial throughout,
/// which is right, since a partial tile's scores are looked at one by one, and only slower. (Outer tiles are row tiles
/// in a map by rows, and column tiles in one by columns.)
///
/// Behind the numbers, 32 bits for each list and 32 outer tiles say where there are visited tiles: bit i for words
/// [i << shift, (i + 1) << shift).
namespace flashmask::cuda {

/// How words of a map in squares are found (common/tile_walk.cuh).
struct MapSquares {
  static constexpr std::uint32_t kTiles = 32, kWords = 2 * kTiles;
  /// The first squares, which the whole map shares: all of their tiles are of one kind. AtEnd: where inner tiles end.
  /// The words of the skipped one are never read.
  enum Shared : std::uint32_t { kSkipped, kPartial, kPartialAtEnd, kFull, kFullAtEnd, kShared };

  /// Of the bits behind the numbers; each is for whole looks of a warp at 32 words.
  static int occupied_shift(int words) {
    int shift = 5;
    while ((words - 1) >> shift >= 32) ++shift;
    return shift;
  }
  /// Of a square, an outer tile and a kind of tiles: partial (0) or full (1).
  __host__ __device__ static std::uint32_t place(std::uint32_t square, std::uint32_t outer_tile, std::uint32_t kind) {
    return square * kWords + outer_tile % kTiles * 2 + kind;
  }
};

/// How many squares a map has, and how many of them words.
class SquareGrid {
 public:
  /// `of_strip`: how many squares have words, for each 32 row tiles and for each 32 column tiles of a list.
  SquareGrid(const MaskShape& mask, TileShape tile, MapSide side, int of_strip);

  std::size_t squares() const { return squares_; }
  /// Of all lists, with 32 outer tiles each.
  std::size_t strips() const { return strips_; }
  /// With the bits behind them.
  std::size_t numbers() const { return squares_ + strips_; }
  /// Squares that have room.
  std::uint32_t stored() const { return stored_; }
  std::size_t words() const { return (std::size_t{stored_} + MapSquares::kShared) * MapSquares::kWords; }
  /// Of columns of squares, which blocks of threads take.
  std::size_t slices() const { return slices_; }
  /// Of what is noted while the map is made.
  std::size_t note_words() const { return note_words_; }

 private:
  std::size_t squares_, strips_, slices_, note_words_;
  std::uint32_t stored_;
};

/// What is filled, on the device.
struct SquareMap {
  MapSide side;
  std::uint32_t* numbers;
  std::uint32_t* words;
  std::uint32_t* notes;
  std::uint32_t* visited;  ///< to which the number of visited tiles is added, or nullptr
  std::uint32_t stored;    ///< as SquareGrid says
};

/// Fills a map on the stream, as make_tile_maps() does.
void make_square_map(const std::int32_t* const (&intervals)[4], const MaskShape& mask, TileShape tile,
                     const SquareMap& map, cudaStream_t stream);

}  // namespace flashmask::cuda
