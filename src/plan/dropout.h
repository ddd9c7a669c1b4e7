// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "flashmask/dropout.h"

namespace flashmask {

/// 16-bit random numbers from here on are kept; 0: no dropout.
std::uint32_t dropout_threshold(double dropout);

/// Where the parts of a packed DropoutPlace lie; nulls: there is none.
struct DropoutTables {
  const std::int32_t* heads = nullptr;  ///< [2]: first head, and heads of the larger problem
  const std::int32_t* row_eights = nullptr;
  const std::int32_t* column_eights = nullptr;

  /// The number of a query head that decisions depend on, which counts heads through batch entries.
  std::uint32_t head(const Problem& problem, std::int64_t batch, std::int64_t query_head) const {
    const std::int64_t first = heads == nullptr ? 0 : heads[0];
    return static_cast<std::uint32_t>(batch * (heads == nullptr ? problem.query_heads : heads[1]) + first + query_head);
  }
};
DropoutTables dropout_tables(const Problem& problem, std::span<const std::int32_t> place);

/// Throws where a problem with dropout is given a state that its counters do not hold, or a place of another size.
void check_dropout(const std::string& call, const Problem& problem, const DropoutState& state,
                   std::span<const std::int32_t> place);

}  // namespace flashmask
