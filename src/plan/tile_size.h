// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/attention.h"
#include "plan/kernel.h"

namespace flashmask {

/// What a kernel takes under a mask: told from schedules on the host as the device tells it from its maps.
TileSize size_for(const LoweredMask& mask, const SmallTiles& when, Executor& executor);

}  // namespace flashmask
