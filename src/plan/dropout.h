// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "flashmask/dropout.h"

namespace flashmask {

/// Returns the least 16-bit random number that is kept; 0: no dropout.
std::uint32_t dropout_threshold(double dropout);

/// Pointers to the parts of a packed DropoutPlace; null if there is none.
struct DropoutTables {
  const std::int32_t* heads = nullptr;  ///< [2]: the call's first head in the larger problem, and that problem's heads
  const std::int32_t* row_eights = nullptr;
  const std::int32_t* column_eights = nullptr;

  /// Returns the number of a query head that decisions depend on; it counts heads across batch entries.
  std::uint32_t head(const Problem& problem, std::int64_t batch, std::int64_t query_head) const {
    const std::int64_t first = heads == nullptr ? 0 : heads[0];
    return static_cast<std::uint32_t>(batch * (heads == nullptr ? problem.query_heads : heads[1]) + first + query_head);
  }
};
DropoutTables dropout_tables(const Problem& problem, std::span<const std::int32_t> place);

/// Throws if a problem with dropout is given a state that its counters cannot hold, or a place of the wrong size.
void check_dropout(const std::string& call, const Problem& problem, const DropoutState& state,
                   std::span<const std::int32_t> place);

}  // namespace flashmask
