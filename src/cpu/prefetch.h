// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/compiler.h"

namespace flashmask::cpu {

/// Prefetches rows that will be read soon, a few cache lines at a time between register tiles: requested all at once,
/// they would queue up before the loads of the current tile.
class Prefetch {
 public:
  /// Forgets what is left and begins with `count` rows of `width` bytes, `stride` bytes apart; none if count <= 0.
  FLASHMASK_INLINE void begin(const void* rows, std::int64_t stride, std::int64_t count, std::int64_t width) {
    row_ = static_cast<const char*>(rows);
    stride_ = stride;
    rows_left_ = count;
    width_ = width;
    offset_ = 0;
  }

  /// Prefetches up to `lines` cache lines; returns how many of them were too many.
  FLASHMASK_INLINE int fetch(int lines) {
    for (; lines > 0 && rows_left_ > 0; --lines) {
      __builtin_prefetch(row_ + offset_, 0, 2);
      offset_ += kLine;
      if (offset_ < width_) continue;
      offset_ = 0;
      row_ += stride_;
      --rows_left_;
    }
    return lines;
  }

 private:
  static constexpr std::int64_t kLine = 64;

  const char* row_ = nullptr;
  std::int64_t stride_ = 0, rows_left_ = 0, width_ = 0, offset_ = 0;
};

}  // namespace flashmask::cpu
