// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "mask/chosen_tokens.h"

namespace flashmask {

/// The rows and columns of one batch entry that a moved mask keeps, and their new numbers. Rows are ascending.
struct TokensOfEntry {
  const ChosenTokens& rows;
  const ChosenTokens& columns;
};
using TokensOfEntries = std::function<TokensOfEntry(std::int64_t batch)>;

/// Returns the mask of shape `to` that shows each kept row the kept columns that it saw. Columns of padding are masked
/// throughout, and so are rows of padding in a masked range; other rows of padding see the columns that the row before
/// them sees. The kept rows of a masked range are consecutive, so each range stays one range.
IntervalMask moved_intervals(const IntervalMask& mask, const MaskShape& to, const TokensOfEntries& tokens);

/// Returns the same for a mask of bits, in which all padding is masked.
BitMask moved_bits(const BitMask& mask, const MaskShape& to, const TokensOfEntries& tokens, Executor& executor);

}  // namespace flashmask
