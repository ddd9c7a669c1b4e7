// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/mask.h"

namespace flashmask {

/// Returns the tokens, ascending, before which a sequence can be cut for free: under none of the masks does a row on
/// one side see a column on the other. The first token and the end are among them.
std::vector<std::int64_t> free_cuts(std::span<const Mask* const> masks, std::int64_t tokens, Executor& executor);

}  // namespace flashmask
