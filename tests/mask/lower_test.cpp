// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::refusal;

TEST(Lower, HandsOutTheSharedIntervalsOfABuilder) {
  const Mask mask = masks::causal(100, 100);
  EXPECT_EQ(&lower(mask).intervals(), &lower(mask).intervals());
  EXPECT_EQ(lower(mask).form(), MaskForm::intervals);
  EXPECT_EQ(lower(mask).why(), "every column has at most two masked row ranges");
  EXPECT_EQ(lower(mask).memory_bytes(), 1600U);
}

TEST(Lower, OfTheExpandedMaskIsLowerOfTheMask) {
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    const Mask again = from_dense(mask.shape(), expand(mask));
    EXPECT_EQ(expand(again), expand(mask)) << one.name();
    if (lower(mask).blocks() != nullptr) continue;  // kept beside intervals, which dense scores cannot tell
    ASSERT_EQ(lower(again).form(), lower(mask).form()) << one.name();
    if (lower(mask).form() == MaskForm::intervals) {
      EXPECT_EQ(lower(again).intervals(), lower(mask).intervals()) << one.name();
    } else {
      EXPECT_EQ(lower(again).bits(), lower(mask).bits()) << one.name();
    }
  }
}

TEST(Lower, OfOneFormHasNotTheOther) {
  const Mask intervals = masks::causal(100, 100);
  const std::string no_bits = refusal([&] { intervals.lowered().bits(); });
  EXPECT_NE(no_bits.find("LoweredMask::bits"), std::string::npos) << no_bits;
  const std::string no_intervals = refusal([&] { lower(intervals, MaskForm::bits).intervals(); });
  EXPECT_NE(no_intervals.find("LoweredMask::intervals"), std::string::npos) << no_intervals;
}

/// Column 2 of head 1 of batch entry 1 is striped: rows 0, 2 and 4 are masked.
Mask striped() {
  return from_predicate({.batch = 2, .heads = 2, .rows = 6, .columns = 4}, [](auto batch, auto head, auto i, auto j) {
    return batch == 0 || head == 0 || j < 2 || i % 2 == 1;
  });
}

TEST(FindMisfit, NamesTheFirstColumnThatNeedsThreeRanges) {
  const auto misfit = find_misfit(striped());
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->batch, 1);
  EXPECT_EQ(misfit->head, 1);
  EXPECT_EQ(misfit->column, 2);
  EXPECT_EQ(misfit->ranges, 3);
}

TEST(FindMisfit, FindsNoneInAMaskOfTwoRanges) {
  EXPECT_FALSE(find_misfit(masks::global_sliding_window(30, 3, 2, 2)));
  EXPECT_FALSE(find_misfit(from_predicate({.batch = 1, .heads = 1, .rows = 5, .columns = 3},
                                          [](auto, auto, auto i, auto) { return i % 2 == 0; })));
}

TEST(Lower, TakesBitsAndSaysWhichColumnDoesNotFit) {
  const LoweredMask lowered = lower(striped());
  EXPECT_EQ(lowered.form(), MaskForm::bits);
  EXPECT_EQ(lowered.why(), "column 2 (batch 1, head 1) has 3 masked row ranges and two is what intervals hold");
}

TEST(Lower, ToIntervalsRefusesAMaskThatDoesNotFit) {
  EXPECT_EQ(refusal([] { lower(striped(), MaskForm::intervals); }, Status::unsupported),
            "lower: intervals were asked for, but in from_predicate column 2 (batch 1, head 1) has 3 masked row ranges "
            "and two is what intervals hold; give a mask with at most two in every key column, or take bits");
}

TEST(Lower, ToBitsKeepsEveryScore) {
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    const LoweredMask bits = lower(mask, MaskForm::bits);
    ASSERT_EQ(bits.form(), MaskForm::bits);
    EXPECT_EQ(expand(Mask(bits, "bits")), expand(mask)) << one.name();
  }
}

}  // namespace
}  // namespace flashmask
