// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "flashmask/tile.h"

namespace flashmask {

/// Joins the lists of all pieces in order, in vectors of exactly the size needed, since they are kept for as long as a
/// model runs.
RunLists joined(const std::vector<RunLists>& pieces);

}  // namespace flashmask
