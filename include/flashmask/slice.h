// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/span.h"

namespace flashmask {

/// Restricts a mask to some of its query rows and some of its key columns, such as those that one of several GPUs
/// holds; batch and heads stay. Row spans are disjoint and ascending; column spans are disjoint and stay in the order
/// given.
///
/// A mask of intervals stays one, since a masked range covers consecutive rows among those that are left. A block map
/// stays beside its intervals where the spans hold whole blocks. Any other slice has bits, or intervals where every
/// column fits them. Causality follows the tokens' positions in the whole mask, not their new ones.
///
/// Throws Status::invalid_argument, naming the first span that is out of range, out of order or overlaps another.
FLASHMASK_API Mask slice(const Mask& mask, std::span<const Span> rows, std::span<const Span> columns,
                         Executor& executor = default_executor());

}  // namespace flashmask
