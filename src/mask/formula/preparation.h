// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "mask/formula/search.h"

namespace flashmask {

/// A formula as searches read it: equal numbers are prepared once, whichever conditions compare them. Pointers to what
/// is prepared are not set.
struct Preparation {
  std::vector<PreparedCondition> conditions;
  std::vector<RowNumbers> numbers;
  std::vector<GroupTables> groups;
  SearchSizes sizes;
};

/// Throws Status::invalid_argument where the conditions are not one formula, or the shape is none,
/// and Status::unsupported where they nest too deep.
Preparation prepared(const Formula& formula);

}  // namespace flashmask
