// SPDX-License-Identifier: Apache-2.0
#include "mask/ranges.h"

#include <algorithm>

namespace flashmask {

void unite(std::span<const Interval> a, std::span<const Interval> b, std::vector<Interval>& out) {
  out.clear();
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    const bool from_a = j == b.size() || (i < a.size() && a[i].begin < b[j].begin);
    const Interval next = from_a ? a[i++] : b[j++];
    if (!out.empty() && next.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, next.end);
    } else {
      out.push_back(next);
    }
  }
}

void intersect(std::span<const Interval> a, std::span<const Interval> b, std::vector<Interval>& out) {
  out.clear();
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const Interval common{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (!common.empty()) out.push_back(common);
    ++(a[i].end < b[j].end ? i : j);
  }
}

}  // namespace flashmask
