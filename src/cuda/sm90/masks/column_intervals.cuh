// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/common/mask_reads.cuh"
#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/tile_scores.cuh"

/// Which scores of a tile a consumer's thread has to hide, as bits: 1 = masked. The thread holds transposed scores: for
/// key h (0: its first key, 1: the key 8 further on), rows 8 i + 2 (lane % 4) and + 1 are bits h · kRows / 4 + 2 i and
/// + 1. Keys past the last are masked in every row.
namespace flashmask::cuda::sm90 {

/// A tile of rows in its stage, and a tile of keys.
struct MaskedTile {
  int list;  // number of the mask's (batch, head)
  int first_row;
  int first_key;
  int stage;
};

/// How a thread's words for transposed scores of kRows rows are laid out.
template <int kRows>
struct ColumnWords {
  static constexpr int kWords = kRows / 64;

  /// The place of number `i` of an accumulator of 16 × 8 scores.
  static __device__ __forceinline__ constexpr BitPlace place(int, int eight, int i) {
    const int bit = i / 2 * (kRows / 4) + 2 * eight + i % 2;
    return {bit / 32, bit % 32};
  }
};

/// Makes the words from a mask of intervals: when the list of the mask changes, a warp of consumers reads the intervals
/// of its 16 keys into its part of shared memory. A tile needs no copies. kKeeps: false where shared memory has no room
/// for the intervals; each tile that needs a mask then reads them anew.
template <int kRows, int kColumns, bool kKeeps = true>
class ColumnIntervals {
 public:
  using Words = ColumnWords<kRows>;
  static constexpr int kCopiedBytes = 0;
  struct alignas(16) Memory {
    int4 keys[kKeeps ? kColumns : 1];
  };

  static __device__ __forceinline__ void copy(Memory&, const MaskView&, const MaskedTile&, std::uint64_t*) {}

  /// `own_keys`: the first of the warp's 16 keys, counted from the tile's first.
  __device__ __forceinline__ ColumnIntervals(Memory& memory, const MaskView& mask, int own_keys)
      : mask_(mask), keys_(memory.keys + (kKeeps ? own_keys : 0)), own_keys_(own_keys) {}

  /// Called when the key tile changes, with the list of its first tile of rows.
  __device__ __forceinline__ void begin_keys(int list, int first_key) {
    if constexpr (!kKeeps) return;
    read_keys(list, first_key + own_keys_);
    list_ = list;
  }

  __device__ __forceinline__ void load(std::uint32_t (&words)[Words::kWords], const MaskedTile& tile) {
    if constexpr (kKeeps) {
      if (tile.list != list_) begin_keys(tile.list, tile.first_key);
      find_words(words, keys_, tile.first_row);
    } else {
      const int key = tile.first_key + own_keys_ + lane_index() / 4;
      find_words(words, ends_of(tile.list, key), ends_of(tile.list, key + 8), tile.first_row);
    }
  }

  /// The intervals of all keys of a tile; one warp reads them for all.
  class Keys {
   public:
    __device__ __forceinline__ Keys(const MaskView& mask, const MaskedTile& tile) {
#pragma unroll
      for (int i = 0; i < kColumns / 32; ++i)
        load_intervals(mask, tile.list, tile.first_key + 32 * i + lane_index(), ends_[i]);
    }
    __device__ __forceinline__ void store(Memory& memory) const {
#pragma unroll
      for (int i = 0; i < kColumns / 32; ++i)
        memory.keys[32 * i + lane_index()] = {ends_[i][0], ends_[i][1], ends_[i][2], ends_[i][3]};
    }

   private:
    std::int32_t ends_[kColumns / 32][4];  // one key per lane
  };

  /// Makes the words from what Keys stored; `own_keys` as in the constructor.
  static __device__ __forceinline__ void find_words(std::uint32_t (&words)[Words::kWords], const Memory& memory,
                                                    int own_keys, int first_row) {
    find_words(words, memory.keys + own_keys, first_row);
  }

 private:
  static __device__ __forceinline__ void find_words(std::uint32_t (&words)[Words::kWords], const int4* keys,
                                                    int first_row) {
    const int lane = lane_index();
    find_words(words, keys[lane / 4], keys[lane / 4 + 8], first_row);
  }

  /// Makes the words from the intervals of the thread's two keys.
  static __device__ __forceinline__ void find_words(std::uint32_t (&words)[Words::kWords], const int4& of_first,
                                                    const int4& of_second, int first_row) {
    const int first = lane_index() % 4 * 2;
    const std::uint32_t low = bits(of_first, first_row, first);
    const std::uint32_t high = bits(of_second, first_row, first);
    if constexpr (kRows == 64) {
      words[0] = low | high << 16;
    } else {
      words[0] = low;
      words[1] = high;
    }
  }

  /// Lanes 0 to 15 each read the first range of one key, the others the second.
  __device__ __forceinline__ void read_keys(int list, int first_key) const {
    const int lane = lane_index(), key = first_key + lane % 16;
    const bool exists = key < mask_.columns;
    const std::int64_t at = static_cast<std::int64_t>(list) * mask_.columns + key;
    const bool second = lane >= 16;
    const int begin = exists ? __ldg(mask_.intervals[0 + 2 * second] + at) : 0;
    const int end = exists ? __ldg(mask_.intervals[1 + 2 * second] + at) : 1 << 30;
    __syncwarp();
    reinterpret_cast<int2*>(keys_ + lane % 16)[second] = {begin, end};
    __syncwarp();
  }

  __device__ __forceinline__ int4 ends_of(int list, int key) const {
    std::int32_t ends[4];
    load_intervals(mask_, list, key, ends);
    return {ends[0], ends[1], ends[2], ends[3]};
  }

  static __device__ __forceinline__ std::uint32_t bits(const int4& ends, int first_row, int first) {
    return bits_between(below(ends.x - first_row, first), below(ends.y - first_row, first)) |
           bits_between(below(ends.z - first_row, first), below(ends.w - first_row, first));
  }

  /// Returns how many of the thread's rows, first + 8 i and first + 8 i + 1, lie before `end`.
  static __device__ __forceinline__ int below(int end, int first) {
    const int rows = min(max(end, 0), kRows) - first;
    return ((rows + 7) >> 3) + ((rows + 6) >> 3);
  }

  static __device__ __forceinline__ std::uint32_t bits_between(int begin, int end) {
    return bits_from(begin, end - begin);
  }

  const MaskView& mask_;
  int4* keys_;
  int own_keys_;
  int list_ = -1;  // whose keys are in shared memory
};

}  // namespace flashmask::cuda::sm90
