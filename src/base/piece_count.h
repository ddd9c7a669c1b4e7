// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bodies.h"

namespace flashmask {

/// Returns into how many consecutive pieces to split work, at most `most`: more than there are workers, so that uneven
/// pieces balance out, but one where there is one worker.
inline std::int64_t piece_count(const Executor& executor, std::int64_t most) {
  constexpr std::int64_t kPiecesPerWorker = 4;
  const std::int64_t workers = worker_count(executor);
  return std::clamp<std::int64_t>(most, 1, workers == 1 ? 1 : workers * kPiecesPerWorker);
}

}  // namespace flashmask
