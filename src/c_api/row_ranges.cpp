// SPDX-License-Identifier: Apache-2.0
#include "flashmask/row_ranges.h"

#include "base/checks.h"
#include "c_api/sized_struct.h"

using flashmask::c_api::array;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::require;

struct flashmask_row_ranges {
  flashmask::RowRanges ranges;
};

flashmask_status flashmask_mask_to_row_ranges(const flashmask_mask* mask, int32_t most_ends,
                                              flashmask_row_ranges** ranges) {
  return guard([&] {
    require(ranges, "ranges");
    *ranges = new flashmask_row_ranges{flashmask::to_row_ranges(require(mask, "mask").mask, most_ends)};
  });
}

flashmask_status flashmask_row_ranges_get(const flashmask_row_ranges* ranges, flashmask_row_ranges_view* view) {
  return guard([&] {
    const flashmask::RowRanges& found = require(ranges, "ranges").ranges;
    flashmask_row_ranges_view made{};
    made.ends = found.ends;
    made.size = std::ssize(found.values);
    made.values = found.values.data();
    flashmask::c_api::write_struct(made, view, "view");
  });
}

void flashmask_row_ranges_destroy(flashmask_row_ranges* ranges) { delete ranges; }

flashmask_status flashmask_mask_from_row_ranges(const int32_t* values, const flashmask_mask_shape* shape, int32_t ends,
                                                flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    const flashmask::MaskShape extent = flashmask::c_api::to_shape(shape);
    const auto count = static_cast<std::int64_t>(flashmask::element_count(
        "flashmask_mask_from_row_ranges", {extent.heads, ends < 0 ? 0 : ends, extent.batch, extent.rows}));
    *mask = make_handle(flashmask::from_row_ranges(array(values, count, "values"), extent, ends));
  });
}
