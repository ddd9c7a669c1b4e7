// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/views/plan.h"
#include "flashmask/mask_shape.h"

namespace flashmask::cuda {

struct VisitedTiles {
  int masked = 0, full = 0;
};

/// The words of one outer tile in a flat map. Kind 0: partial, 1: full.
class FlatWords {
 public:
  __device__ __forceinline__ FlatWords(const TileMapView& map, int list, int outer_tile)
      : row_(map.tiles + (static_cast<std::int64_t>(list) * map.outer_tiles + outer_tile) * 2 * map.words) {}

  __device__ __forceinline__ std::uint32_t of(const TileMapView& map, int kind, int word) const {
    return row_[kind * map.words + word];
  }
  __device__ __forceinline__ int next(const TileMapView&, int word) const { return word; }

 private:
  const std::uint32_t* row_;
};

/// The words of one outer tile in a map that may be in squares (plan/map_squares.h).
class MapWords {
 public:
  __device__ __forceinline__ MapWords(const TileMapView& map, int list, int outer_tile)
      : line_(list * map.lines + outer_tile) {}

  __device__ __forceinline__ std::uint32_t of(const TileMapView& map, std::uint32_t kind, std::uint32_t word) const {
    const std::uint32_t line = forgotten_line(), words = map.words;
    if (map.squares == nullptr) return map.tiles[std::uint64_t{2 * line + kind} * words + word];
    const std::uint32_t square = map.squares[std::uint64_t{line / MapSquares::kTiles} * words + word];
    return square == MapSquares::kSkipped ? 0 : map.tiles[MapSquares::place(square, line, kind)];
  }
  /// Returns the first word, from this one on, whose group of 32 words may hold visited tiles; one past the last word
  /// means none.
  __device__ __forceinline__ int next(const TileMapView& map, int word) const {
    if (map.occupied == nullptr) return word;
    const int bit = word >> map.occupied_shift;
    const std::uint32_t rest = __funnelshift_rc(map.occupied[forgotten_line() / MapSquares::kTiles], 0, bit);
    if (rest & 1) return word;
    return rest == 0 ? map.words : (bit + __ffs(rest) - 1) << map.occupied_shift;
  }

 private:
  /// Keeps the compiler from holding an address in registers: some producers have only 24.
  __device__ __forceinline__ std::uint32_t forgotten_line() const {
    std::uint32_t line = line_;
    asm volatile("" : "+r"(line));
    return line;
  }

  std::uint32_t line_;  // among the outer tiles of all lists
};

/// The inner tiles that one outer tile visits, as a warp walks them: partial tiles, then full ones, each in ascending
/// order. A full tile that ends beyond the last key needs bits and is walked with the partial ones; kMayBeRagged:
/// whether the view can have such tiles. kForm: the mask's; maps for bits are flat.
template <bool kMayBeRagged = true, MaskForm kForm = MaskForm::intervals>
struct TileList {
  using Words = std::conditional_t<kForm == MaskForm::bits, FlatWords, MapWords>;

  const TileMapView& map;
  int list;
  Words words;

  __device__ __forceinline__ TileList(const TileMapView& view, int batch, int head, int outer_tile)
      : map(view),
        list((view.batch == 1 ? 0 : batch) * view.heads + head / view.head_ratio),
        words(view, list, outer_tile) {}

  __device__ __forceinline__ std::uint32_t tail(int word) const {
    return kMayBeRagged && map.ragged && word == map.words - 1 ? 1U << ((map.inner_tiles - 1) % 32) : 0;
  }
  __device__ __forceinline__ std::uint32_t existing(int word) const {
    const int tiles = map.inner_tiles - 32 * word;
    return tiles >= 32 ? ~0U : (1U << tiles) - 1;
  }
  __device__ __forceinline__ std::uint32_t masked(int word) const {
    const std::uint32_t last = tail(word);
    return marked(0, word) | (last != 0 ? marked(1, word) & last : 0);
  }
  __device__ __forceinline__ std::uint32_t full(int word) const { return marked(1, word) & ~tail(word); }
  __device__ __forceinline__ std::uint32_t visited(int word) const { return marked(0, word) | marked(1, word); }
  __device__ __forceinline__ std::uint32_t skipped(int word) const { return ~visited(word) & existing(word); }

  __device__ __forceinline__ VisitedTiles count(int lane) const {
    VisitedTiles count;
#pragma unroll 1
    for (int word = lane; word < map.words; word += 32) {
      count.masked += __popc(masked(word));
      count.full += __popc(full(word));
    }
    count.masked = __reduce_add_sync(~0U, count.masked);
    count.full = __reduce_add_sync(~0U, count.full);
    return map.visit_all ? VisitedTiles{map.inner_tiles, 0} : count;
  }

  template <class Body>
  __device__ __forceinline__ void for_each_masked_tile(int lane, const Body& body) const {
    walk(lane, map.visit_all ? 3 : 1, [&](int tile, int) { body(tile); });
  }
  template <class Body>
  __device__ __forceinline__ void for_each_tile(int lane, const Body& body) const {
    walk(lane, map.visit_all ? 3 : 2, [&](int tile, int) { body(tile); });
  }
  /// Calls body(tile, whether it needs bits).
  template <class Body>
  __device__ __forceinline__ void for_each_marked_tile(int lane, const Body& body) const {
    walk(lane, map.visit_all ? 3 : 2, [&](int tile, int kind) { body(tile, map.visit_all || kind == 0); });
  }

  /// Returns a word of one kind. Kind 0: partial, 1: full, 2: skipped.
  __device__ __forceinline__ std::uint32_t tiles_of(int kind, int word) const {
    return kind == 0 ? masked(word) : kind == 1 ? full(word) : skipped(word);
  }

 private:
  __device__ __forceinline__ std::uint32_t marked(int kind, int word) const { return words.of(map, kind, word); }

  /// One loop over the three kinds, so that the body is compiled once.
  template <class Body>
  __device__ __forceinline__ void walk(int lane, int kinds, const Body& body) const {
    for (int kind = 0; kind < kinds; ++kind) {
      for (int first = -32; (first = words.next(map, first + 32)) < map.words;) {
        const std::uint32_t own = first + lane < map.words ? tiles_of(kind, first + lane) : 0;
        for (std::uint32_t some = __ballot_sync(~0U, own != 0); some != 0; some &= some - 1) {
          const int holder = __ffs(some) - 1;
          for (std::uint32_t word = __shfl_sync(~0U, own, holder); word != 0; word &= word - 1)
            body((first + holder) * 32 + __ffs(word) - 1, kind);
        }
      }
    }
  }
};

}  // namespace flashmask::cuda
