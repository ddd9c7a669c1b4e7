// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

namespace flashmask::cuda::sm90 {

/// A panel of a bias of each score: the rows of a warpgroup, 64 keys of each, in 16-bit numbers.
constexpr int kBiasPanelRows = 64, kBiasPanelBytes = kBiasPanelRows * 64 * 2;

/// A bias of each score for the copy engine, which reads panels of it.
struct BiasMap {
  CUtensorMap map;
  bool exists;            // false: there is no such bias, or the copy engine cannot read it
  int of_batch, of_head;  // 1 where batch entries, or query heads, have values of their own, else 0
};

}  // namespace flashmask::cuda::sm90
