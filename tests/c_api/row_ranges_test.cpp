// SPDX-License-Identifier: Apache-2.0
#include "flashmask/row_ranges.h"

#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/handles.h"

namespace flashmask::c_api {
namespace {

TEST(RowRangesInC, GoOutAndComeBack) {
  const std::vector<std::int64_t> lengths = {2, 1};
  const MaskHandle mask = make(flashmask_mask_causal_document, lengths.data(), 2, 4);
  flashmask_row_ranges* ranges = nullptr;
  ASSERT_EQ(flashmask_mask_to_row_ranges(mask.get(), 63, &ranges), FLASHMASK_OK) << flashmask_last_error();
  flashmask_row_ranges_view view = FLASHMASK_INIT(flashmask_row_ranges_view);
  ASSERT_EQ(flashmask_row_ranges_get(ranges, &view), FLASHMASK_OK) << flashmask_last_error();
  // Rows 0 and 1 see columns from 0 on, row 2 sees column 2 alone, row 3 is padding.
  EXPECT_EQ(view.ends, 3);
  EXPECT_EQ(std::vector<std::int32_t>(view.values, view.values + view.size),
            (std::vector<std::int32_t>{1, 2, 0, 0, 1, 2, 2, 0, 1, 2, 3, 0}));
  const flashmask_mask_shape shape = {1, 1, 4, 4};
  const MaskHandle back = make(flashmask_mask_from_row_ranges, view.values, &shape, 3);
  EXPECT_EQ(expand(back->mask), expand(mask->mask));
  flashmask_row_ranges_destroy(ranges);
  flashmask_row_ranges_destroy(nullptr);
}

TEST(RowRangesInC, AreRefusedInAStatus) {
  const std::vector<std::int64_t> lengths = {2, 1};
  const MaskHandle mask = make(flashmask_mask_causal_document, lengths.data(), 2, 3);
  flashmask_row_ranges* ranges = nullptr;
  EXPECT_EQ(flashmask_mask_to_row_ranges(mask.get(), 1, &ranges), FLASHMASK_UNSUPPORTED);
  EXPECT_NE(std::string(flashmask_last_error()).find("row 2 needs 3 ends"), std::string::npos);
  EXPECT_EQ(ranges, nullptr);
  const flashmask_mask_shape shape = {1, 1, 3, 3};
  const std::vector<std::int32_t> values(6);
  flashmask_mask* made = nullptr;
  EXPECT_EQ(flashmask_mask_from_row_ranges(values.data(), &shape, 2, &made), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(flashmask_last_error()).find("give an odd number"), std::string::npos);
}

}  // namespace
}  // namespace flashmask::c_api
