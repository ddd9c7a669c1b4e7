#pragma once

#include <cstdint>

#include "cuda/sm90/column_memory.cuh"

namespace flashmask::cuda::sm90 {

/// Which scores of a tile the thread of a consumer has to hide, as bits, from the intervals of its two keys. It holds
/// transposed scores: of key h (the thread's first and that 8 further on) the rows 8 i + 2 (lane % 4) and + 1 are bits
/// h · kRows / 4 + 2 i and + 1; 1 = masked.
template <int kRows>
class IntervalWords {
 public:
  static constexpr int kWords = kRows / 64;

  /// `keys`: room for the 16 keys of the warp.
  __device__ __forceinline__ IntervalWords(const ColumnArguments& arguments, int4* keys)
      : arguments_(arguments), keys_(keys) {}

  /// Of a mask's (batch, head), for the warp's keys from `first_key` on: two of the four arrays a lane.
  __device__ __forceinline__ void begin(int list, int first_key) const {
    const int lane = lane_index(), key = first_key + lane % 16;
    const bool exists = key < arguments_.key_length;
    const std::int64_t at = static_cast<std::int64_t>(list) * arguments_.key_length + key;
    // What lies past the last key is masked in every row.
    const bool second = lane >= 16;
    const int begin = exists ? __ldg(arguments_.intervals[0 + 2 * second] + at) : 0;
    const int end = exists ? __ldg(arguments_.intervals[1 + 2 * second] + at) : 1 << 30;
    __syncwarp();
    reinterpret_cast<int2*>(keys_ + lane % 16)[second] = {begin, end};
    __syncwarp();
  }

  __device__ __forceinline__ void load(std::uint32_t (&words)[kWords], int first_row) const {
    const int lane = lane_index(), first = lane % 4 * 2;
    const std::uint32_t low = bits(keys_[lane / 4], first_row, first);
    const std::uint32_t high = bits(keys_[lane / 4 + 8], first_row, first);
    if constexpr (kRows == 64) {
      words[0] = low | high << 16;
    } else {
      words[0] = low;
      words[1] = high;
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t bits(const int4& ends, int first_row, int first) {
    return bits_between(below(ends.x - first_row, first), below(ends.y - first_row, first)) |
           bits_between(below(ends.z - first_row, first), below(ends.w - first_row, first));
  }

  /// How many of the thread's rows, every eight from `first` on two, lie before `end`.
  static __device__ __forceinline__ int below(int end, int first) {
    const int rows = min(max(end, 0), kRows) - first;
    return ((rows + 7) >> 3) + ((rows + 6) >> 3);
  }

  static __device__ __forceinline__ std::uint32_t bits_between(int begin, int end) {
    std::uint32_t bits;
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(bits) : "r"(begin), "r"(end - begin));
    return bits;
  }

  const ColumnArguments& arguments_;
  int4* keys_;
};

}  // namespace flashmask::cuda::sm90
