#pragma once

#include <cstdint>

namespace flashmask::cuda::sm90 {

/// Where a ring stands. Producers begin in the phase that lets their first waits pass.
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

}  // namespace flashmask::cuda::sm90
