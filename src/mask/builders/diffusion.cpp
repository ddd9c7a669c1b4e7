// SPDX-License-Identifier: Apache-2.0
#include "base/checks.h"
#include "mask/builders/visible_rows.h"

namespace flashmask::masks {

Mask block_diffusion(std::int64_t length, std::int64_t block) {
  check_size("block_diffusion", "length", length);
  if (block < 1) refuse("block_diffusion: block is " + grouped(block) + "; give the tokens of a block (>= 1)");
  check_size("block_diffusion", "2 * length", 2 * length);
  IntervalMask mask = all_visible("block_diffusion", 2 * length);
  const std::int64_t size = std::min(block, std::max<std::int64_t>(length, 1));
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int64_t begin = j / size * size;
    const std::int64_t end = std::min(begin + size, length);
    show_column(mask, j, {begin, end});
    // A clean column is seen by the noisy rows of later blocks, and by the clean rows of its own and later blocks.
    hide_column(mask, length + j, {0, end}, {length, length + begin});
  }
  return Mask(std::move(mask), "block_diffusion(block " + grouped(block) + ")");
}

}  // namespace flashmask::masks
