// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "flashmask/interval_mask.h"

/// Sets of rows as ascending, disjoint ranges that do not touch, as IntervalMask stores them.
namespace flashmask {

void unite(std::span<const Interval> a, std::span<const Interval> b, std::vector<Interval>& out);
void intersect(std::span<const Interval> a, std::span<const Interval> b, std::vector<Interval>& out);

}  // namespace flashmask
