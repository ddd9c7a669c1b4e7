// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/attention.h"
#include "plan/kernel.h"

namespace flashmask {

/// Returns the tile size that a kernel uses under a mask, found from schedules as the device finds it from its maps.
TileSize size_for(const LoweredMask& mask, const SmallTiles& when, Executor& executor);

}  // namespace flashmask
