// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bodies.h"
#include "base/joined_lists.h"
#include "base/piece_count.h"
#include "flashmask/executor.h"

namespace flashmask {

/// The fewest lists per piece: sharing out smaller pieces costs more than it saves.
constexpr std::int64_t kListsPerPiece = 16;

/// Shares [0, count) out over the executor in consecutive pieces of at least `least`; build(begin, end) returns the run
/// lists of one piece.
template <class Build>
RunLists build_in_pieces(std::int64_t count, std::int64_t least, Executor& executor, const Build& build) {
  const std::int64_t number = piece_count(executor, count / least);
  std::vector<RunLists> pieces(static_cast<std::size_t>(number));
  run_bodies(executor, static_cast<int>(number),
             [&](int i) { pieces[static_cast<std::size_t>(i)] = build(count * i / number, count * (i + 1) / number); });
  return joined(pieces);
}

}  // namespace flashmask
