// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

TEST(StridedFactorised, SeesTheLastColumnsAndEveryStridethBefore) {
  for (const std::int64_t tokens : {0, 1, 10, 65, 200}) {
    for (const std::int64_t stride : {1, 3, 8, 64, 300}) {
      expect_visible(masks::strided_factorised(tokens, stride),
                     [&](auto i, auto j) { return j <= i && (i - j <= stride || (i - j) % stride == 0); });
    }
  }
}

TEST(FixedFactorised, SeesItsBlockAndTheSummariesOfEarlierOnes) {
  for (const std::int64_t tokens : {0, 1, 10, 65, 200}) {
    for (const std::int64_t stride : {1, 3, 8, 64, 300}) {
      for (const std::int64_t summary : {std::int64_t{0}, std::int64_t{1}, stride / 2, stride}) {
        expect_visible(masks::fixed_factorised(tokens, stride, summary), [&](auto i, auto j) {
          return j <= i && (i / stride == j / stride || j % stride >= stride - summary);
        });
      }
    }
  }
}

TEST(Factorised, TakesAStrideBeyondTheSequence) {
  EXPECT_EQ(expand(masks::strided_factorised(70, INT64_MAX)), expand(masks::causal(70, 70)));
  EXPECT_EQ(expand(masks::fixed_factorised(70, INT64_MAX, 1)), expand(masks::causal(70, 70)));
}

TEST(Factorised, RefusesAStrideBelowOneAndASummaryBeyondTheStride) {
  EXPECT_EQ(refusal([] { masks::strided_factorised(9, 0); }),
            "strided_factorised: stride is 0; give the columns of one factor (>= 1)");
  EXPECT_EQ(refusal([] { masks::fixed_factorised(9, -1, 0); }),
            "fixed_factorised: stride is -1; give the columns of one factor (>= 1)");
  EXPECT_EQ(refusal([] { masks::fixed_factorised(9, 4, 5); }),
            "fixed_factorised: summary is 5; give the number of a block's last columns that later blocks see, from 0 "
            "to stride, which is 4");
}

}  // namespace
}  // namespace flashmask
