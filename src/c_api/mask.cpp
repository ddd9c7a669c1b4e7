// SPDX-License-Identifier: Apache-2.0
#include "flashmask/mask.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "c_api/copy_out.h"
#include "c_api/sized_struct.h"
#include "flashmask/draw.h"
#include "flashmask/explain.h"
#include "flashmask/packed_mask.h"
#include "flashmask/startend_row_indices.h"

using flashmask::Error;
using flashmask::Mask;
using flashmask::Status;
using flashmask::c_api::array;
using flashmask::c_api::check_capacity;
using flashmask::c_api::copy_out;
using flashmask::c_api::element_count;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::require;
using flashmask::c_api::write_struct;

namespace {

template <typename Combine>
flashmask_status combine(const flashmask_mask* a, const flashmask_mask* b, flashmask_mask** mask,
                         Combine&& combine) noexcept {
  return guard([&] {
    require(mask, "mask");
    *mask = make_handle(combine(require(a, "a").mask, require(b, "b").mask));
  });
}

/// `stack` is stack_batch or stack_heads.
flashmask_status stack(const flashmask_mask* const* masks, int64_t count, flashmask_mask** mask,
                       Mask (*stack)(std::span<const Mask>)) noexcept {
  return guard([&] {
    require(mask, "mask");
    std::vector<Mask> given;
    for (const flashmask_mask* one : array(masks, count, "masks")) given.push_back(require(one, "masks[]").mask);
    *mask = make_handle(stack(given));
  });
}

flashmask_explanation to_explanation(const flashmask::Explanation& from) {
  flashmask_explanation to{};
  to.form = static_cast<std::int32_t>(from.form);
  to.tile_rows = from.tile.rows;
  to.tile_columns = from.tile.columns;
  to.first_empty_row_count = static_cast<std::int32_t>(from.first_empty_rows.size());
  std::ranges::copy(from.first_empty_rows, to.first_empty_rows);
  to.empty_rows = from.empty_rows;
  to.visible_pairs = from.visible_pairs;
  to.skipped_tiles = from.tiles.skip;
  to.partial_tiles = from.tiles.partial;
  to.full_tiles = from.tiles.full;
  to.density = from.density;
  to.waste = from.waste;
  to.mask_bytes = from.mask_bytes;
  to.schedule_bytes = from.schedule_bytes;
  to.dense_bytes = from.dense_bytes;
  return to;
}

flashmask::DrawOptions to_draw_options(const flashmask_draw_options* options) {
  const flashmask_draw_options given = flashmask::c_api::read_optional_struct(options, "options");
  flashmask::DrawOptions result{.batch = given.batch, .head = given.head, .colour = given.colour != 0};
  if (given.width != 0) result.width = given.width;
  return result;
}

flashmask::StartEndRowIndices to_row_indices(const Mask& mask) {
  const flashmask::LoweredMask lowered = flashmask::lower(mask, flashmask::MaskForm::intervals);
  if (lowered.blocks() != nullptr) {
    throw flashmask::Error(flashmask::Status::unsupported,
                           "to_startend_row_indices: " + mask.description() +
                               " has a block map beside its intervals, which row indices cannot say; export the mask "
                               "without the map, and the map on its own");
  }
  return flashmask::to_startend_row_indices(lowered.intervals());
}

}  // namespace

void flashmask_mask_destroy(flashmask_mask* mask) { delete mask; }

flashmask_status flashmask_mask_and(const flashmask_mask* a, const flashmask_mask* b, flashmask_mask** mask) {
  return combine(a, b, mask, [](const Mask& x, const Mask& y) { return x & y; });
}

flashmask_status flashmask_mask_not(const flashmask_mask* mask, flashmask_mask** complement) {
  return guard([&] {
    require(complement, "complement");
    *complement = make_handle(~require(mask, "mask").mask);
  });
}

flashmask_status flashmask_mask_or(const flashmask_mask* a, const flashmask_mask* b, flashmask_mask** mask) {
  return combine(a, b, mask, [](const Mask& x, const Mask& y) { return x | y; });
}

flashmask_status flashmask_mask_stack_batch(const flashmask_mask* const* masks, int64_t count, flashmask_mask** mask) {
  return stack(masks, count, mask, flashmask::stack_batch);
}

flashmask_status flashmask_mask_stack_heads(const flashmask_mask* const* masks, int64_t count, flashmask_mask** mask) {
  return stack(masks, count, mask, flashmask::stack_heads);
}

flashmask_status flashmask_mask_from_startend_row_indices(const int32_t* values, const flashmask_mask_shape* shape,
                                                          int vectors, int causal, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    const flashmask::MaskShape extent = flashmask::c_api::to_shape(shape);
    const std::array<std::int64_t, 4> sizes = {extent.batch, extent.heads, extent.columns, vectors};
    const auto count = static_cast<std::int64_t>(element_count(sizes, "values"));
    *mask =
        make_handle(flashmask::from_startend_row_indices(array(values, count, "values"), extent, vectors, causal != 0));
  });
}

flashmask_status flashmask_mask_to_startend_row_indices(const flashmask_mask* mask, int32_t* values, int64_t capacity,
                                                        flashmask_startend_row_indices* encoding) {
  return guard([&] {
    flashmask::c_api::size_of(encoding, "encoding");  // before values are written
    const auto indices = to_row_indices(require(mask, "mask").mask);
    const auto size = static_cast<std::int64_t>(indices.values.size());
    copy_out(std::span(indices.values), values, static_cast<std::size_t>(std::max<std::int64_t>(capacity, 0)),
             "values");
    flashmask_startend_row_indices result{};
    result.vectors = indices.vectors;
    result.causal = indices.causal ? 1 : 0;
    result.size = size;
    write_struct(result, encoding, "encoding");
  });
}

flashmask_status flashmask_mask_get_shape(const flashmask_mask* mask, flashmask_mask_shape* shape) {
  return guard([&] {
    require(shape, "shape");
    const auto& [batch, heads, rows, columns] = require(mask, "mask").mask.shape();
    *shape = {batch, heads, rows, columns};
  });
}

flashmask_status flashmask_mask_explain(const flashmask_mask* mask, int32_t tile_rows, int32_t tile_columns,
                                        flashmask_explanation* explanation) {
  return guard([&] {
    const auto found = flashmask::explain(require(mask, "mask").mask, {tile_rows, tile_columns});
    write_struct(to_explanation(found), explanation, "explanation");
  });
}

flashmask_status flashmask_mask_draw(const flashmask_mask* mask, const flashmask_draw_options* options, char* buffer,
                                     size_t capacity, size_t* size) {
  return guard([&] {
    require(size, "size");
    const std::string text = flashmask::draw(require(mask, "mask").mask, to_draw_options(options));
    copy_out(std::span(text.c_str(), text.size() + 1), buffer, capacity, "buffer");
    *size = text.size() + 1;
  });
}

flashmask_status flashmask_mask_pack(const flashmask_mask* mask, void* buffer, int64_t capacity, int64_t* size) {
  return guard([&] {
    require(size, "size");
    const Mask& given = require(mask, "mask").mask;
    const std::size_t needed = flashmask::packed_bytes(given);
    if (buffer != nullptr || capacity != 0) {
      auto* const bytes = static_cast<std::byte*>(buffer);
      require(bytes, "buffer");
      check_capacity("buffer", static_cast<std::size_t>(std::max<std::int64_t>(capacity, 0)), needed);
      flashmask::pack(given, {bytes, needed});
    }
    *size = static_cast<std::int64_t>(needed);
  });
}

flashmask_status flashmask_mask_unpack(const void* bytes, int64_t size, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    *mask = make_handle(flashmask::unpack(array(static_cast<const std::byte*>(bytes), size, "bytes")));
  });
}
