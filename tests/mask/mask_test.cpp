// SPDX-License-Identifier: Apache-2.0
#include "flashmask/mask.h"

#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::refusal;

TEST(Mask, VisibleAgreesWithTheExpandedMask) {
  for (const corpus::Entry& entry : corpus::entries()) {
    const corpus::Size size{.rows = 64, .columns = 64, .heads = 2};
    const Mask mask = entry.build(size);
    for (std::int64_t h = 0; h < mask.shape().heads; ++h) {
      testing::expect_visible(
          mask, [&](auto i, auto j) { return mask.visible(0, h, i, j); }, 0, h);
    }
  }
}

TEST(Mask, RefusesIndicesOutsideIt) {
  const Mask mask = masks::causal(4, 6);
  EXPECT_EQ(refusal([&] { mask.visible(0, 1, 0, 0); }),
            "Mask::visible: head is 1 but the mask has 1; give an index from 0 to below that");
  EXPECT_EQ(refusal([&] { mask.visible(0, 0, 4, 0); }),
            "Mask::visible: row is 4 but the mask has 4; give an index from 0 to below that");
  EXPECT_EQ(refusal([&] { mask.visible(0, 0, 0, -1); }),
            "Mask::visible: column is -1 but the mask has 6; give an index from 0 to below that");
}

TEST(Mask, DescribesItself) {
  const std::vector<std::int64_t> lengths = {2, 1};
  EXPECT_EQ(masks::causal_document(lengths, 4).description(), "causal_document(2 documents)");
  EXPECT_EQ((masks::causal(4, 4) & masks::sliding_window(4, 4, 1000)).description(),
            "(causal & sliding_window(1,000))");
}

TEST(MaskForm, HasAName) {
  EXPECT_EQ(to_string(MaskForm::intervals), "intervals");
  EXPECT_EQ(to_string(MaskForm::bits), "bits");
}

}  // namespace
}  // namespace flashmask
