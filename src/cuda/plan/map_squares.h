// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/plan/tile_map.h"
#include "cuda/views/plan.h"
#include "plan/device_plan.h"

/// A map of many tiles has two levels, so that its words grow with the tokens instead of their square. A square is
/// 32 × 32 tiles. For each list and 32 outer tiles there are ⌈inner tiles / 32⌉ numbers of squares. Only squares that
/// are neither visible nor masked throughout have words of their own: for each of the 32 outer tiles, a word of its
/// partial inner tiles and a word of its full ones. Room for words is limited; squares that find none count as partial
/// throughout, which is exact, since each score of a partial tile is tested, and only slower. (Outer tiles are row
/// tiles in a map by rows, and column tiles in a map by columns.)
///
/// Behind the numbers, 32 bits for each list and 32 outer tiles say where there are visited tiles: bit i stands for
/// words [i << shift, (i + 1) << shift).
namespace flashmask::cuda {

/// Returns the shift of the bits behind the numbers; each bit covers whole groups of 32 words, which a warp reads at
/// once.
inline int occupied_shift(int words) {
  int shift = 5;
  while ((words - 1) >> shift >= 32) ++shift;
  return shift;
}

/// How many squares a map has, and how many of them have words.
class SquareGrid {
 public:
  /// `of_strip`: most squares with words per 32 row tiles and per 32 column tiles of a list, on average over the map.
  SquareGrid(const MaskShape& mask, TileShape tile, MapSide side, int of_strip);

  std::size_t squares() const { return squares_; }
  /// Strips of 32 outer tiles, in all lists.
  std::size_t strips() const { return strips_; }
  /// Numbers of squares, and the bits behind them.
  std::size_t numbers() const { return squares_ + strips_; }
  /// Squares that there is room for.
  std::uint32_t stored() const { return stored_; }
  std::size_t words() const { return (std::size_t{stored_} + MapSquares::kShared) * MapSquares::kWords; }
  /// Slices of columns of squares; one block of threads each.
  std::size_t slices() const { return slices_; }
  /// Words for the notes that are taken while the map is made.
  std::size_t note_words() const { return note_words_; }

 private:
  std::size_t squares_, strips_, slices_, note_words_;
  std::uint32_t stored_;
};

/// Device memory that make_square_map() fills.
struct SquareMap {
  MapSide side;
  std::uint32_t* numbers;
  std::uint32_t* words;
  std::uint32_t* notes;
  std::uint32_t* visited;  ///< the number of visited tiles is added to it; may be nullptr
  std::uint32_t stored;    ///< SquareGrid::stored()
};

/// Fills a map on the stream, as make_tile_maps() does.
void make_square_map(const std::int32_t* const (&intervals)[4], const MaskShape& mask, TileShape tile,
                     const SquareMap& map, cudaStream_t stream);

}  // namespace flashmask::cuda
