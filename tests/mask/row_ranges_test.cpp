// SPDX-License-Identifier: Apache-2.0
#include "flashmask/row_ranges.h"

#include <gtest/gtest.h>

#include <string>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/corpus.h"

namespace flashmask {
namespace {

/// What the ends of a row say, as booleans [batch, heads, rows, columns].
std::vector<std::uint8_t> expanded(const RowRanges& ranges) {
  const MaskShape& shape = ranges.shape;
  std::vector<std::uint8_t> visible;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads; ++h)
      for (std::int64_t r = 0; r < shape.rows; ++r)
        for (std::int64_t c = 0; c < shape.columns; ++c) {
          const auto end = [&](std::int64_t i) {
            return ranges.values[static_cast<std::size_t>(((h * ranges.ends + i) * shape.batch + b) * shape.rows + r)];
          };
          bool seen = c < end(0);
          for (int i = 1; i < ranges.ends; i += 2) seen |= end(i) <= c && c < end(i + 1);
          visible.push_back(seen ? 1 : 0);
        }
  return visible;
}

std::string refusal_of(const Mask& mask, int most_ends) {
  try {
    to_row_ranges(mask, most_ends);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RowRanges, SayWhatTheMaskSaysAndComeBackAsIt) {
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    const RowRanges ranges = to_row_ranges(mask, 1001);
    ASSERT_EQ(ranges.ends % 2, 1) << one.name();
    ASSERT_EQ(expanded(ranges), expand(mask)) << one.name();
    const Mask back = from_row_ranges(ranges.values, ranges.shape, ranges.ends);
    ASSERT_EQ(expand(back), expand(mask)) << one.name();
    if (mask.lowered().form() == MaskForm::intervals && mask.lowered().blocks() == nullptr) {
      ASSERT_EQ(back.lowered().form(), MaskForm::intervals) << one.name();
    }
  }
}

TEST(RowRanges, TakeNoMoreEndsThanARowNeeds) {
  EXPECT_EQ(to_row_ranges(masks::causal(3, 3)).values, (std::vector<std::int32_t>{1, 2, 3}));
  const RowRanges documents = to_row_ranges(masks::causal_document({2, 1}, 3));
  EXPECT_EQ(documents.ends, 3);
  EXPECT_EQ(documents.values, (std::vector<std::int32_t>{1, 2, 0, 1, 2, 2, 1, 2, 3}));
  EXPECT_EQ(to_row_ranges(masks::causal_document({2, 1}, 4)).values,  // the last row sees nothing
            (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2, 2, 0, 1, 2, 3, 0}));
}

TEST(RowRanges, NameTheFirstRowThatNeedsMore) {
  EXPECT_EQ(refusal_of(masks::causal_document({2, 1}, 3), 1),
            "to_row_ranges: batch entry 0, mask head 0: row 2 needs 3 ends of visible ranges; at most 1 are asked for");
  EXPECT_NE(refusal_of(masks::causal(3, 3), 2).find("most_ends is 2; give an odd number"), std::string::npos);
}

TEST(RowRanges, MayOverlapAndLieOutside) {
  const std::vector<std::int32_t> values = {-5, 1, 2, 0, 4, 0, 1, 3, 3, 99};  // two rows of five ends
  const Mask mask = from_row_ranges(values, {1, 1, 2, 5}, 5);
  EXPECT_EQ(expand(mask), (std::vector<std::uint8_t>{0, 1, 1, 1, 0, 1, 0, 0, 1, 1}));
}

TEST(RowRanges, OfNoRowsAreNone) {
  const RowRanges found = to_row_ranges(masks::causal(0, 7));
  EXPECT_EQ(found, (RowRanges{{}, {1, 1, 0, 7}, 1}));
  EXPECT_EQ(from_row_ranges(found.values, found.shape, found.ends).shape(), found.shape);
  EXPECT_EQ(to_row_ranges(masks::causal(3, 0)).values, (std::vector<std::int32_t>{0, 0, 0}));
}

TEST(RowRanges, AreRefusedInOtherNumbers) {
  const auto message = [](std::size_t count, int ends) -> std::string {
    try {
      from_row_ranges(std::vector<std::int32_t>(count), {1, 1, 4, 4}, ends);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(8, 2), "from_row_ranges: there are 2 ends per row; give an odd number, from 1 on");
  EXPECT_EQ(
      message(8, 3),
      "from_row_ranges: values has 8 values but heads x ends x batch x rows is 12; give int32 [heads, ends, batch x "
      "rows]");
}

}  // namespace
}  // namespace flashmask
