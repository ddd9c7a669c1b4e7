// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/launch.h"

namespace flashmask::cpu {

/// See kernel_tasks.h. Tasks are handed out in ascending order of column tiles, so a task that is waited for has
/// already started: every wait ends, even where an executor runs its workers one after another.
struct GradQueryTurns {
  std::atomic<std::int32_t>* added;  ///< per row tile: column tiles that have added
  HeadMask mask;
};

}  // namespace flashmask::cpu
