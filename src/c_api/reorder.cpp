// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reorder.h"

#include <algorithm>

#include "base/checks.h"
#include "c_api/sized_struct.h"

using flashmask::Mask;
using flashmask::c_api::array;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::require;

struct flashmask_reordering {
  flashmask::Reordering reordering;
};

flashmask_status flashmask_mask_reorder(const flashmask_mask* mask, int32_t tile_rows, int32_t tile_columns,
                                        flashmask_reordering** reordering) {
  return guard([&] {
    require(reordering, "reordering");
    *reordering = new flashmask_reordering{flashmask::reorder(require(mask, "mask").mask, {tile_rows, tile_columns})};
  });
}

flashmask_status flashmask_reordering_get(const flashmask_reordering* reordering, flashmask_reordering_view* view) {
  return guard([&] {
    flashmask::c_api::write_struct(flashmask::c_api::to_view(require(reordering, "reordering").reordering), view,
                                   "view");
  });
}

flashmask_status flashmask_reordering_get_mask(const flashmask_reordering* reordering, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    *mask = make_handle(require(reordering, "reordering").reordering.mask);
  });
}

void flashmask_reordering_destroy(flashmask_reordering* reordering) { delete reordering; }

flashmask_status flashmask_mask_permute(const flashmask_mask* mask, const int64_t* rows, const int64_t* columns,
                                        flashmask_mask** permuted) {
  return guard([&] {
    require(permuted, "permuted");
    const Mask& original = require(mask, "mask").mask;
    const auto& shape = original.shape();
    *permuted = make_handle(flashmask::permute(original, array(rows, shape.batch * shape.rows, "rows"),
                                               array(columns, shape.batch * shape.columns, "columns")));
  });
}

flashmask_status flashmask_reverse_cuthill_mckee(int64_t nodes, const int64_t* offsets, const int64_t* column_indices,
                                                 int64_t count, int64_t* order) {
  return guard([&] {
    flashmask::check_size("flashmask_reverse_cuthill_mckee", "nodes", nodes);
    if (nodes > 0) require(order, "order");
    std::ranges::copy(flashmask::reverse_cuthill_mckee(array(offsets, nodes + 1, "offsets"),
                                                       array(column_indices, count, "column_indices")),
                      order);
  });
}
