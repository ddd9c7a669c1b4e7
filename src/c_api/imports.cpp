// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "base/checks.h"
#include "c_api/convert.h"
#include "c_api/copy_out.h"
#include "flashmask/dropout.h"
#include "flashmask/mask.h"

using flashmask::DenseScores;
using flashmask::DenseType;
using flashmask::MaskShape;
using flashmask::VisiblePair;
using flashmask::c_api::array;
using flashmask::c_api::element_count;
using flashmask::c_api::enumerator;
using flashmask::c_api::guard;
using flashmask::c_api::make_handle;
using flashmask::c_api::require;
using flashmask::c_api::to_shape;

namespace {

/// Copies a whole dense result, or throws if the capacity is too small.
void copy_dense(const std::vector<std::uint8_t>& from, std::uint8_t* to, std::int64_t capacity, const char* name) {
  if (capacity < std::ssize(from)) {
    throw flashmask::Error(flashmask::Status::invalid_argument,
                           std::string(name) + " has a capacity of " + std::to_string(capacity) +
                               " bytes; give at least " + std::to_string(from.size()));
  }
  if (!from.empty()) std::ranges::copy(from, &require(to, name));
}

/// `eights` may be null.
std::vector<std::int32_t> to_eights(const int32_t* eights, std::int64_t tokens) {
  return eights == nullptr ? std::vector<std::int32_t>() : std::vector<std::int32_t>(eights, eights + (tokens + 7) / 8);
}

}  // namespace

flashmask_status flashmask_mask_from_strided(const flashmask_mask_shape* shape, const void* scores, int32_t dense_type,
                                             const int64_t* strides, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    DenseScores dense{scores, enumerator(dense_type, DenseType::i64, "dense_type"), to_shape(shape), {}};
    std::ranges::copy(array(strides, 4, "strides"), dense.strides.begin());
    *mask = make_handle(flashmask::from_dense(dense));
  });
}

flashmask_status flashmask_mask_from_packed(const flashmask_mask_shape* shape, const uint8_t* bits,
                                            flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    const MaskShape extent = to_shape(shape);
    const std::int64_t bytes = extent.columns / 8 + (extent.columns % 8 != 0 ? 1 : 0);
    const std::array<std::int64_t, 4> sizes = {extent.batch, extent.heads, extent.rows, bytes};
    const auto count = static_cast<std::int64_t>(element_count(sizes, "bits"));
    *mask = make_handle(flashmask::from_packed(extent, array(bits, count, "bits")));
  });
}

flashmask_status flashmask_mask_from_predicate(const flashmask_mask_shape* shape, flashmask_predicate predicate,
                                               void* context, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    require(predicate, "predicate");
    const auto visible = [=](std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) {
      return predicate(context, batch, head, row, column) != 0;
    };
    *mask = make_handle(flashmask::from_predicate(to_shape(shape), visible));
  });
}

flashmask_status flashmask_mask_from_pairs(int64_t rows, int64_t columns, const flashmask_visible_pair* pairs,
                                           int64_t count, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    std::vector<VisiblePair> given;
    for (const flashmask_visible_pair& pair : array(pairs, count, "pairs")) given.push_back({pair.row, pair.column});
    *mask = make_handle(flashmask::from_pairs(rows, columns, given));
  });
}

flashmask_status flashmask_mask_from_csr(int64_t rows, int64_t columns, const int64_t* offsets,
                                         const int64_t* column_indices, int64_t count, flashmask_mask** mask) {
  return guard([&] {
    require(mask, "mask");
    flashmask::check_size("flashmask_mask_from_csr", "rows", rows);
    *mask = make_handle(flashmask::from_csr(rows, columns, array(offsets, rows + 1, "offsets"),
                                            array(column_indices, count, "column_indices")));
  });
}

flashmask_status flashmask_mask_expand(const flashmask_mask* mask, uint8_t* visible, int64_t capacity) {
  return guard([&] { copy_dense(flashmask::expand(require(mask, "mask").mask), visible, capacity, "visible"); });
}

flashmask_status flashmask_mask_get_form(const flashmask_mask* mask, int32_t* form, const char** why) {
  return guard([&] {
    const flashmask::LoweredMask& lowered = require(mask, "mask").mask.lowered();
    if (form != nullptr) *form = static_cast<int32_t>(lowered.form());
    if (why != nullptr) *why = lowered.why().c_str();
  });
}

flashmask_status flashmask_dropout_expand(const flashmask_problem* problem, uint64_t seed, uint64_t offset,
                                          uint8_t* kept, int64_t capacity) {
  return guard([&] {
    const flashmask::Problem extent = flashmask::c_api::to_problem(problem);
    copy_dense(flashmask::expand_dropout(extent, {seed, offset}), kept, capacity, "kept");
  });
}

flashmask_status flashmask_dropout_place_pack(const flashmask_problem* problem, int64_t first_head, int64_t heads,
                                              const int32_t* row_eights, const int32_t* column_eights, int32_t* packed,
                                              int64_t capacity, int64_t* size) {
  return guard([&] {
    const flashmask::Problem part = flashmask::c_api::to_problem(problem);
    validate(part);
    const std::vector<std::int32_t> made = flashmask::pack({.first_head = first_head,
                                                            .heads = heads,
                                                            .row_eights = to_eights(row_eights, part.query_length),
                                                            .column_eights = to_eights(column_eights, part.key_length)},
                                                           part);
    require(size, "size") = std::ssize(made);
    flashmask::c_api::copy_out(std::span(made), packed, static_cast<std::size_t>(std::max<std::int64_t>(capacity, 0)),
                               "packed");
  });
}
