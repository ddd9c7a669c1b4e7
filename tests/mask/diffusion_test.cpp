// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

TEST(BlockDiffusion, NoisyBlocksSeeThemselvesAndTheCleanBlocksBefore) {
  for (const std::int64_t length : {0, 1, 12, 31}) {
    for (const std::int64_t block : {1, 4, 5, 40}) {
      const auto block_of = [&](std::int64_t token) { return token % std::max<std::int64_t>(length, 1) / block; };
      expect_visible(masks::block_diffusion(length, block), [&](auto i, auto j) {
        const bool noisy_row = i < length;
        const bool noisy_column = j < length;
        if (noisy_column) return noisy_row && block_of(i) == block_of(j);
        return noisy_row ? block_of(j) < block_of(i) : block_of(j) <= block_of(i);
      });
    }
  }
}

TEST(BlockDiffusion, AcceptsABlockLongerThanAnySequence) {
  const Mask mask = masks::block_diffusion(3, std::numeric_limits<std::int64_t>::max());
  expect_visible(mask, [](auto i, auto j) { return (i < 3) == (j < 3); });
}

TEST(BlockDiffusion, RefusesAnEmptyBlock) {
  EXPECT_EQ(refusal([] { masks::block_diffusion(8, 0); }),
            "block_diffusion: block is 0; give the tokens of a block (>= 1)");
}

TEST(BlockDiffusion, RefusesALengthWhoseDoubleIsTooLong) {
  EXPECT_EQ(refusal([] { masks::block_diffusion(std::int64_t{1} << 30, 8); }),
            "block_diffusion: 2 * length is 2,147,483,648; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
