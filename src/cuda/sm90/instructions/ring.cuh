// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace flashmask::cuda::sm90 {

/// The slot of a ring that comes next, and the parity of its barrier's phase. Producers wait for the opposite parity,
/// so that their first waits pass.
template <int kSlots>
struct RingPosition {
  int slot = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      phase ^= 1;
    }
  }
};

/// As RingPosition, in one register where kSlots is a power of two: rings that advance together then share it.
template <int kSlots>
class RingCounter {
  static constexpr bool kCounts = (kSlots & (kSlots - 1)) == 0;

 public:
  __device__ __forceinline__ int slot() const { return kCounts ? static_cast<int>(at_ % kSlots) : position_.slot; }
  __device__ __forceinline__ std::uint32_t phase() const { return kCounts ? at_ / kSlots % 2 : position_.phase; }
  __device__ __forceinline__ void advance() {
    if (kCounts)
      ++at_;
    else
      position_.advance();
  }

 private:
  std::uint32_t at_ = 0;
  RingPosition<kSlots> position_;
};

}  // namespace flashmask::cuda::sm90
