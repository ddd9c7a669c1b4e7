#pragma once

#include <cstdint>

#include "cpu/intervals_predicate.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

namespace flashmask::cpu {

/// Which register tiles of a score tile hold anything visible, and over which ranges the products that follow must sum.
/// "Lines" are the rows of the score tile as the kernel holds it (keys in the forward, queries in the backward),
/// "cross" is the other direction, the vector lanes. Short documents live on this: their tiles are mostly empty.
template <class Isa>
struct TileExtent {
  using Blocks = RowBlocks<Isa>;

  std::uint64_t any[Blocks::count];  ///< visible lanes of a block of lines
  int lines_begin[Blocks::count];    ///< lines that a block of lanes needs, whole blocks
  int lines_end[Blocks::count];
  int first_line;  ///< lines that any lane needs
  int last_line;

  /// Everything counts.
  FLASHMASK_INLINE void set_whole() {
    for (int b = 0; b < Blocks::count; ++b) {
      any[b] = ~0ull;
      lines_begin[b] = 0;
      lines_end[b] = kTile;
    }
    first_line = 0;
    last_line = kTile;
  }

  FLASHMASK_INLINE void set_visible(const TileBits& bits) {
    for (int b = 0; b < Blocks::count; ++b) {
      any[b] = 0;
      for (int line = Blocks::begin(b); line < Blocks::end(b); ++line) any[b] |= bits.word[line];
    }
    first_line = kTile;
    last_line = 0;
    for (int lanes = 0; lanes < Blocks::count; ++lanes) {
      const std::uint64_t mine = low_bits(Blocks::end(lanes)) & ~low_bits(Blocks::begin(lanes));
      lines_begin[lanes] = kTile;
      lines_end[lanes] = 0;
      for (int b = 0; b < Blocks::count; ++b) {
        if ((any[b] & mine) == 0) continue;
        if (lines_end[lanes] == 0) lines_begin[lanes] = Blocks::begin(b);
        lines_end[lanes] = Blocks::end(b);
      }
      if (lines_end[lanes] == 0) continue;
      first_line = lines_begin[lanes] < first_line ? lines_begin[lanes] : first_line;
      last_line = lines_end[lanes] > last_line ? lines_end[lanes] : last_line;
    }
  }

  FLASHMASK_INLINE bool empty() const { return first_line >= last_line; }

  /// Does the register tile at (block of lines, panel of lanes) hold a visible score?
  FLASHMASK_INLINE bool active(int block, int panel) const {
    return (any[block] >> (panel * kPanel<Isa>)&low_bits(kPanel<Isa>)) != 0;
  }

  /// Lanes that a block of lines needs: [begin, end), begin a multiple of the unit.
  FLASHMASK_INLINE int lanes_begin(int block) const {
    return any[block] == 0 ? 0 : __builtin_ctzll(any[block]) / Isa::step * Isa::step;
  }
  FLASHMASK_INLINE int lanes_end(int block) const { return any[block] == 0 ? 0 : kTile - __builtin_clzll(any[block]); }
};

}  // namespace flashmask::cpu
