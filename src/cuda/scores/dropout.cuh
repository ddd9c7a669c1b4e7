// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/philox.h"
#include "cuda/instructions/lane_exchanges.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/scores.h"

/// Which scores of a tile dropout drops, as words of bits that a warp makes for its own scores: 1 = dropped. One draw
/// of Philox 4×32-7 (Salmon et al. 2011) decides about eight neighbouring columns of one row. A lane makes one draw for
/// every eight scores that it holds, and lanes then exchange decisions, so that no draw is made twice.
namespace flashmask::cuda {

/// The decisions for one warp's tile of 16 kUnits rows and kColumns columns, in accumulator layout: lane 4 g + q holds
/// rows g and g + 8 of each unit, and columns 2 q and 2 q + 1 of every eight. The columns begin at a multiple of 8. In
/// a transposed tile the warp's rows are keys, 16 per unit, and its columns are rows of the sequence. A word holds four
/// draws of the lane; draw i of kDraws is for rows g + 8 (i % (2 kUnits)) and the columns from 32 (i / (2 kUnits)) on.
template <int kUnits_, int kColumns_>
struct DroppedWords {
  static constexpr int kUnits = kUnits_, kColumns = kColumns_, kEights = 2 * kUnits;
  static constexpr int kDraws = kEights * ((kColumns + 31) / 32), kWords = (kDraws + 3) / 4;

  std::uint32_t words[kWords];

  static __device__ __forceinline__ constexpr int draws_in(int word) {
    return kDraws - 4 * word < 4 ? kDraws - 4 * word : 4;
  }

  /// The place of number `i` of an accumulator of 16 × 8 scores.
  static __device__ __forceinline__ constexpr BitPlace place(int unit, int eight, int i) {
    const int draw = eight / 4 * kEights + 2 * unit + i / 2, from = eight % 4, word = draw / 4;
    return {word, from % 2 * 16 + i % 2 * 8 + 8 - 2 * draws_in(word) + draw % 4 * 2 + from / 2};
  }

  /// A mask of 16 bits for each of the numbers 2 half and 2 half + 1.
  __device__ __forceinline__ std::uint32_t halves(int unit, int eight, int half) const {
    const auto [word, bit] = place(unit, eight, 2 * half);
    return spread_tops(words[word] << (7 - bit % 8), bit < 16 ? 0x1100 : 0x3322);
  }
};

/// Drops scores, or probabilities, or their gradients: they become 0.
template <int kUnits, int kEights>
__device__ __forceinline__ void drop(float (&s)[kUnits][kEights][4], const DroppedWords<kUnits, 8 * kEights>& dropped) {
  replace<DroppedWords<kUnits, 8 * kEights>>(s, dropped.words, 0);
}

/// Drops 16 places of a unit from the packed operand of a product.
template <class Words>
__device__ __forceinline__ void drop(std::uint32_t (&packed)[4], const Words& dropped, int unit, int sixteen) {
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] &= ~dropped.halves(unit, 2 * sixteen + i / 2, i % 2);
}

/// Drops from all of a packed operand.
template <int kUnits, int kSteps, class Words>
__device__ __forceinline__ void drop(std::uint32_t (&packed)[kSteps][kUnits][4], const Words& dropped) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) drop(packed[step][unit], dropped, unit, step);
}

/// Where decisions count the warp's first row, or column; the others of its tile follow it there too (DropoutPlace).
__device__ __forceinline__ int drawn_token(const std::int32_t* eights, int first) {
  return eights == nullptr ? first : __ldg(eights + first / 8) * 8;
}

/// The Philox key of one head (numbered across the batch). Read at each use: a replayed graph may find a new seed.
struct DropoutSeed {
  std::uint32_t keys[2], head, offset;

  __device__ __forceinline__ DropoutSeed(const DropoutArguments& dropout, int batch, int head_of_batch)
      : head(drawn_head(dropout, batch, head_of_batch)) {
    const bool given = dropout.on_device == nullptr;
    const std::uint64_t seed = given ? dropout.seed : dropout.on_device[0];
    keys[0] = uniform(static_cast<std::uint32_t>(seed));
    keys[1] = uniform(static_cast<std::uint32_t>(seed >> 32));
    offset = uniform(static_cast<std::uint32_t>(given ? dropout.offset : dropout.on_device[1]));
  }

  __device__ __forceinline__ int row(const DropoutArguments& dropout, int first) const {
    return drawn_token(dropout.row_eights, first);
  }
  __device__ __forceinline__ int column(const DropoutArguments& dropout, int first) const {
    return drawn_token(dropout.column_eights, first);
  }

 private:
  static __device__ __forceinline__ std::uint32_t drawn_head(const DropoutArguments& dropout, int batch, int head) {
    const std::int32_t* heads = dropout.drawn_heads;
    return heads == nullptr ? batch * dropout.heads + head : batch * heads[1] + heads[0] + head;
  }

  /// Broadcasts, so that the compiler keeps the keys of all rounds in uniform registers.
  static __device__ __forceinline__ std::uint32_t uniform(std::uint32_t word) { return __shfl_sync(~0U, word, 0); }
};

/// DropoutSeed in shared memory, for kernels without registers to spare: read at each use, as is the place in a larger
/// problem. A volatile read of the kernel's arguments does not serve: the compiler takes their offset for an address.
struct StoredDropoutSeed {
  volatile std::uint32_t keys[2], head, offset;
  volatile std::int32_t moved;  // how many rows further on decisions count the tile's rows
  const std::int32_t* volatile column_eights;

  /// Called by one thread. `first_row`: the tile's first.
  __device__ __forceinline__ void store(const DropoutSeed& seed, const DropoutArguments& dropout, int first_row) {
    moved = seed.row(dropout, first_row) - first_row;
    column_eights = dropout.column_eights;
    keys[0] = seed.keys[0];
    keys[1] = seed.keys[1];
    head = seed.head;
    offset = seed.offset;
  }
  __device__ __forceinline__ int row(const DropoutArguments&, int first) const { return first + moved; }
  __device__ __forceinline__ int column(const DropoutArguments&, int first) const {
    return drawn_token(column_eights, first);
  }
};

/// The random numbers of eight columns, two per word.
struct DropoutNumbers {
  std::uint32_t x[4];

  /// `eight`: number of the eight columns in the sequence.
  template <class Seed>
  __device__ __forceinline__ DropoutNumbers(const Seed& seed, std::uint32_t row, std::uint32_t eight)
      : x{eight, row, seed.head, seed.offset} {
#pragma unroll
    for (std::uint32_t round = 0; round < philox::kRounds; ++round) {
      const std::uint64_t a = std::uint64_t{philox::kFactor0} * x[0], b = std::uint64_t{philox::kFactor2} * x[2];
      x[0] = static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ (seed.keys[0] + round * philox::kKeyStep0);
      x[2] = static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ (seed.keys[1] + round * philox::kKeyStep1);
      x[1] = static_cast<std::uint32_t>(b);
      x[3] = static_cast<std::uint32_t>(a);
    }
  }

  /// Bits 15 and 31 say whether two of the columns are dropped; the other bits have no meaning.
  __device__ __forceinline__ std::uint32_t dropped(int word, std::uint32_t addend) const {
    constexpr std::uint32_t kBelow = 0x7FFF7FFF;
    const std::uint32_t own = x[word], sum = (own & kBelow) + (addend & kBelow);
    return ~((own & addend) | (own & sum) | (addend & sum));  // the majority of the three highest bits carries
  }
};

/// Pushes one draw's decisions into the top of each byte: after four draws, bit 8 (c % 4) + 2 i + c / 4 says whether
/// draw i drops its column c.
__device__ __forceinline__ void push_decisions(std::uint32_t& word, const DropoutNumbers& numbers,
                                               std::uint32_t addend) {
  constexpr std::uint32_t kTops = 0x80808080, kOddBytes = 0x7531;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t four =
        __byte_perm(numbers.dropped(2 * half, addend), numbers.dropped(2 * half + 1, addend), kOddBytes);
    word = (word >> 1 & ~kTops) | (four & kTops);
  }
}

/// Finds what is dropped of scores by rows. `first_row`, `first_column`: the warp's, multiples of 8.
template <int kUnits, int kColumns, class Seed>
__device__ __forceinline__ void find_dropped(DroppedWords<kUnits, kColumns>& out, const DropoutArguments& dropout,
                                             const Seed& seed, int first_row, int first_column) {
  using Words = DroppedWords<kUnits, kColumns>;
  const unsigned lane = lane_index(), row = seed.row(dropout, first_row) + lane / 4;
  const unsigned eight = seed.column(dropout, first_column) / 8 + lane % 4;
#pragma unroll
  for (int i = 0; i < Words::kWords; ++i) {
    std::uint32_t word = 0;
#pragma unroll
    for (int draw = 4 * i; draw < 4 * i + Words::draws_in(i); ++draw) {
      const DropoutNumbers numbers(seed, row + draw % Words::kEights * 8, eight + draw / Words::kEights * 4);
      push_decisions(word, numbers, dropout.addend);
    }
    out.words[i] = exchange_bits<2>(exchange_halves<1>(word));
  }
}

/// Does so with the seed of a query head.
template <int kUnits, int kColumns>
__device__ __forceinline__ void find_dropped(DroppedWords<kUnits, kColumns>& out, const DropoutArguments& dropout,
                                             int batch, int head, int first_row, int first_column) {
  find_dropped(out, dropout, DropoutSeed(dropout, batch, head), first_row, first_column);
}

/// Finds what is dropped of transposed scores. `first_key`, `first_row`: the warp's, multiples of 8.
template <int kUnits, int kRows>
__device__ __forceinline__ void find_dropped_transposed(DroppedWords<kUnits, kRows>& out,
                                                        const DropoutArguments& dropout, int batch, int head,
                                                        int first_key, int first_row) {
  using Words = DroppedWords<kUnits, kRows>;
  const DropoutSeed seed(dropout, batch, head);
  const unsigned lane = lane_index(), g = lane / 4, own_row = lane % 4 * 2 + g % 2;
  const unsigned eight = seed.column(dropout, first_key) / 8;
  first_row = seed.row(dropout, first_row);
  // With 16 rows, lanes that are 16 apart need the same draws: each makes half of them, then they share.
  constexpr bool kShares = kRows == 16;
  constexpr int kOwnDraws = kShares ? Words::kDraws / 2 : Words::kDraws;
  static_assert(!kShares || Words::kDraws == 4);
  const unsigned row = first_row + own_row + (kShares ? g % 4 / 2 : g / 2) * 8, later = kShares ? g / 4 * kOwnDraws : 0;
#pragma unroll
  for (int i = 0; i < Words::kWords; ++i) {
    std::uint32_t word = 0;
#pragma unroll
    for (int draw = 4 * i; draw < 4 * i + Words::draws_in(i) && draw < kOwnDraws; ++draw) {
      const DropoutNumbers numbers(seed, row + draw / Words::kEights * 32, eight + later + draw % Words::kEights);
      push_decisions(word, numbers, dropout.addend);
    }
    if constexpr (kShares) {
      if (g < 4) word >>= 4;
      word |= __shfl_xor_sync(~0U, word, 16);
      if (g >= 4) word >>= 1;
    } else {
      word = exchange_bits<16>(word);
    }
    out.words[i] = exchange_bytes<4>(word);
  }
}

}  // namespace flashmask::cuda
