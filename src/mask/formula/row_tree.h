// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "mask/formula/numbers.h"

// The least and the greatest number of any aligned 2^l rows, as a binary tree in an array: node 1 is the root, the
// children of node n are 2n and 2n + 1, and the leaves, one per row, begin at node `places`, a power of two.
namespace flashmask {

struct KeyRange {
  std::int64_t least, greatest;
};

/// A leaf beyond the last row. Searches may stop there, which means that there is no such row.
FLASHMASK_ON_BOTH KeyRange beyond_rows() { return {INT64_MAX, INT64_MIN}; }

FLASHMASK_ON_BOTH KeyRange joined(const KeyRange& a, const KeyRange& b) {
  return {a.least < b.least ? a.least : b.least, a.greatest > b.greatest ? a.greatest : b.greatest};
}

FLASHMASK_ON_BOTH int trailing_zeros(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

FLASHMASK_ON_BOTH int leading_zeros(std::uint64_t word) {
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(word));
#else
  return std::countl_zero(word);
#endif
}

/// Returns the first place from `from` on of whose leaf `may_hold` is true, or `places`. Of a node, may_hold(range)
/// says whether that is so for a leaf below.
template <class MayHold>
FLASHMASK_ON_BOTH std::int32_t next_place(const KeyRange* tree, std::int32_t places, std::int32_t from,
                                          const MayHold& may_hold) {
  std::uint32_t node = static_cast<std::uint32_t>(places) + static_cast<std::uint32_t>(from);
  while (!may_hold(tree[node])) {
    ++node;
    node >>= trailing_zeros(node);  // the largest subtree that begins behind
    if (node == 1) return places;
  }
  while (node < static_cast<std::uint32_t>(places)) {
    node *= 2;
    if (!may_hold(tree[node])) ++node;
  }
  return static_cast<std::int32_t>(node) - places;
}

}  // namespace flashmask
