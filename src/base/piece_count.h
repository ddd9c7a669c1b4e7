#pragma once

#include <algorithm>
#include <cstdint>

#include "flashmask/executor.h"

namespace flashmask {

/// Into how many consecutive pieces to share out at most `most` of them: more than workers, to even out uneven ones,
/// but one for a worker alone.
inline std::int64_t piece_count(const Executor& executor, std::int64_t most) {
  constexpr std::int64_t kPiecesPerWorker = 4;
  const std::int64_t workers = executor.workers();
  return std::clamp<std::int64_t>(most, 1, workers == 1 ? 1 : workers * kPiecesPerWorker);
}

}  // namespace flashmask
