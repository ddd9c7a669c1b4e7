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

}  // namespace flashmask::cuda::sm90
