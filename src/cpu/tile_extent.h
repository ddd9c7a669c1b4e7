// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"

namespace flashmask::cpu {

/// One word per line that says which scores of a tile are visible.
template <int Lines>
struct VisibleLines {
  std::uint64_t word[Lines];
};

/// Where a tile of scores holds anything visible, and over which lines and lanes the products that follow must sum. A
/// line is a row of scores as the kernel holds them (a key in the forward, a query in the backward), with 64 vector
/// lanes across. Short documents gain most from it: their tiles are mostly empty.
template <class Isa, int Lines>
struct TileExtent {
  using Blocks = RowBlocks<Isa, Lines>;
  using LaneBlocks = RowBlocks<Isa, kWordBits>;

  /// [begin, end), begin a multiple of the unit; empty when begin >= end.
  struct Range {
    int begin;
    int end;
  };

  std::uint64_t any[Blocks::count];  ///< visible lanes of a block of lines
  Range needed[LaneBlocks::count];   ///< lines that a block of lanes needs
  Range lines;                       ///< lines that any lane needs

  /// Sets the extent as if every score were visible.
  FLASHMASK_INLINE void set_whole() {
    for (std::uint64_t& lanes : any) lanes = ~0ULL;
    for (Range& range : needed) range = {0, Lines};
    lines = {0, Lines};
  }

  FLASHMASK_INLINE void set_visible(const VisibleLines<Lines>& bits) {
    for (int b = 0; b < Blocks::count; ++b) {
      any[b] = 0;
      for (int line = Blocks::begin(b); line < Blocks::end(b); ++line) any[b] |= bits.word[line];
    }
    lines = lines_of(bits, ~0ULL);
    for (int b = 0; b < LaneBlocks::count; ++b)
      needed[b] = lines_of(bits, low_bits(LaneBlocks::end(b)) & ~low_bits(LaneBlocks::begin(b)));
  }

  /// Whether the register tile at (block of lines, panel of lanes) holds a visible score.
  FLASHMASK_INLINE bool active(int block, int panel) const {
    return (any[block] >> (panel * kPanel<Isa>)&low_bits(kPanel<Isa>)) != 0;
  }

  /// Whether a block of lines holds a visible score in the vector of lanes that begins at `lane`.
  FLASHMASK_INLINE bool vector_active(int block, int lane) const {
    return (any[block] >> lane & low_bits(Isa::lanes)) != 0;
  }

  /// Calls body(Count<lines>, Count<vectors>, first line, first lane) for register tiles that hold all visible scores
  /// of a panel: of one vector where a block of lines sees only that one of two.
  template <class Body>
  FLASHMASK_INLINE void register_tiles(int panel, const Body& body) const {
    const int lane0 = panel * kPanel<Isa>;
    for (int block = 0; block < Blocks::count; ++block) {
      if (!active(block, panel)) continue;
      Blocks::with_rows(block, [&](auto block_lines) FLASHMASK_INLINE_LAMBDA {
        if constexpr (Isa::vectors == 2) {
          const bool first = vector_active(block, lane0);
          if (first != vector_active(block, lane0 + Isa::lanes)) {
            body(block_lines, Count<1>{}, Blocks::begin(block), first ? lane0 : lane0 + Isa::lanes);
            return;
          }
        }
        body(block_lines, Count<Isa::vectors>{}, Blocks::begin(block), lane0);
      });
    }
  }

  /// Returns the lanes that a block of lines needs.
  FLASHMASK_INLINE Range lanes(int block) const {
    if (any[block] == 0) return {kWordBits, 0};
    return {__builtin_ctzll(any[block]) / Isa::step * Isa::step, kWordBits - __builtin_clzll(any[block])};
  }

 private:
  /// Returns the lines from the first to the last that sees any of the wanted lanes.
  FLASHMASK_INLINE Range lines_of(const VisibleLines<Lines>& bits, std::uint64_t wanted) const {
    Range range{Lines, 0};
    for (int b = 0; b < Blocks::count; ++b) {
      if ((any[b] & wanted) == 0) continue;
      if (range.end == 0) range.begin = Blocks::begin(b);
      range.end = Blocks::end(b);
    }
    if (range.end == 0) return range;
    // Not a search that ends at the line, which a processor would predict wrongly nearly each time.
    const int begin = range.begin, end = range.end;
    for (int line = begin + Blocks::size - 1; line >= begin; --line)
      if (line < Lines && (bits.word[line] & wanted) != 0) range.begin = line;
    for (int line = end - Blocks::size; line < end; ++line)
      if (line >= 0 && (bits.word[line] & wanted) != 0) range.end = line + 1;
    return {range.begin / Isa::step * Isa::step, range.end};
  }
};

}  // namespace flashmask::cpu
