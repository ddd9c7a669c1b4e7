// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/span.h"

namespace flashmask {

/// The mask between some of the query rows and some of the key columns, such as those that one of several GPUs holds;
/// batch and heads stay. Rows are disjoint and ascending, columns are disjoint and lie in the order given.
///
/// A mask of intervals stays one: of the rows that are left, a masked range holds consecutive ones. Bits stay bits, and
/// a block map stays beside its intervals where the spans hold whole blocks; else both become bits. Causality is
/// that of the tokens in the whole mask, not of their new places.
///
/// Throws Status::invalid_argument, naming the first span that is out of range, out of order or overlaps another.
FLASHMASK_API Mask slice(const Mask& mask, std::span<const Span> rows, std::span<const Span> columns,
                         Executor& executor = default_executor());

}  // namespace flashmask
