// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/device_arrays.h"

namespace flashmask::cuda {

/// The tokens of a tile: `first` lies at its first place, and from `end` on places are padding.
struct TileTokens {
  int first, end;
};

/// Returns the tokens of the tile that begins at a place of an axis.
__device__ __forceinline__ TileTokens tokens_at(const DeviceUnits& axis, int batch, int place) {
  if (axis.units == nullptr) return {place, axis.tokens};
  const int unit = place / axis.size;
  const int2 tokens = __ldg(reinterpret_cast<const int2*>(axis.units) + batch * axis.entry_stride + unit);
  return {tokens.x + place - unit * axis.size, tokens.y};
}

}  // namespace flashmask::cuda
