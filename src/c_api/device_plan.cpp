// SPDX-License-Identifier: Apache-2.0
#include "flashmask/device_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "c_api/plan.h"
#include "c_api/sized_struct.h"

using flashmask::DeviceDenseMask;
using flashmask::DevicePackedMask;
using flashmask::DeviceRowIndices;
using flashmask::MaskShape;
using flashmask::PlanPlace;
using flashmask::Problem;
using flashmask::c_api::guard;
using flashmask::c_api::read_struct;
using flashmask::c_api::require;
using flashmask::c_api::to_plan_options;
using flashmask::c_api::to_problem;

namespace {

PlanPlace to_place(const flashmask_plan_place* place) {
  const flashmask_plan_place given = read_struct(place, "place");
  return {given.stream, given.memory, given.bytes, given.made != 0};
}

DeviceRowIndices to_row_indices(const flashmask_device_mask& mask) {
  const MaskShape shape = flashmask::c_api::to_shape(&mask.shape);
  const std::array<std::int64_t, 4> sizes = {shape.batch, shape.heads, shape.columns, mask.vectors};
  const auto* const values = static_cast<const std::int32_t*>(mask.data);
  if (flashmask::c_api::element_count(sizes, "mask.data") > 0) require(values, "mask.data");
  const flashmask::DeviceBlockMap blocks{mask.keep_blocks, mask.keep_batch, mask.keep_heads};
  return {values, shape, mask.vectors, mask.causal != 0, blocks, mask.most_documents};
}

DeviceDenseMask to_dense(const flashmask_device_mask& mask) {
  DeviceDenseMask dense{static_cast<const std::uint8_t*>(mask.data), flashmask::c_api::to_shape(&mask.shape)};
  std::copy_n(mask.strides, dense.strides.size(), dense.strides.begin());
  return dense;
}

DevicePackedMask to_packed(const flashmask_device_mask& mask) {
  return {static_cast<const std::uint8_t*>(mask.data), flashmask::c_api::to_shape(&mask.shape)};
}

/// Calls use(source) with the mask as the type that its kind names.
template <class Use>
void with_device_mask(const flashmask_device_mask* mask, Use&& use) {
  const flashmask_device_mask given = read_struct(mask, "mask");
  switch (flashmask::c_api::enumerator(given.kind, FLASHMASK_DEVICE_PACKED, "mask.kind")) {
    case FLASHMASK_DEVICE_DENSE:
      return use(to_dense(given));
    case FLASHMASK_DEVICE_PACKED:
      return use(to_packed(given));
    default:
      return use(to_row_indices(given));
  }
}

}  // namespace

flashmask_status flashmask_plan_bytes(const flashmask_mask* mask, const flashmask_problem* problem,
                                      const flashmask_plan_options* options, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes");
    *bytes = flashmask::plan_bytes(require(mask, "mask").mask, to_problem(problem), to_plan_options(options));
  });
}

flashmask_status flashmask_plan_tile_sizes(const flashmask_mask* mask, const flashmask_problem* problem,
                                           const flashmask_plan_options* options, int32_t* forward, int32_t* backward) {
  return guard([&] {
    require(forward, "forward");
    require(backward, "backward");
    const auto sizes = flashmask::tile_sizes(require(mask, "mask").mask, to_problem(problem), to_plan_options(options));
    *forward = static_cast<int32_t>(sizes.forward);
    *backward = static_cast<int32_t>(sizes.backward);
  });
}

flashmask_status flashmask_plan_create_at(const flashmask_mask* mask, const flashmask_problem* problem,
                                          const flashmask_plan_options* options, const flashmask_plan_place* place,
                                          flashmask_plan** plan) {
  return guard([&] {
    require(plan, "plan");
    const Problem given = to_problem(problem);
    *plan = new flashmask_plan{
        flashmask::plan(require(mask, "mask").mask, given, to_place(place), to_plan_options(options))};
  });
}

flashmask_status flashmask_device_mask_plan_bytes(const flashmask_device_mask* mask, const flashmask_problem* problem,
                                                  const flashmask_plan_options* options, size_t* bytes) {
  return guard([&] {
    require(bytes, "bytes");
    const Problem given = to_problem(problem);
    with_device_mask(
        mask, [&](const auto& source) { *bytes = flashmask::plan_bytes(source, given, to_plan_options(options)); });
  });
}

flashmask_status flashmask_device_mask_plan_create(const flashmask_device_mask* mask, const flashmask_problem* problem,
                                                   const flashmask_plan_options* options,
                                                   const flashmask_plan_place* place, flashmask_plan** plan) {
  return guard([&] {
    require(plan, "plan");
    const Problem given = to_problem(problem);
    with_device_mask(mask, [&](const auto& source) {
      *plan = new flashmask_plan{flashmask::plan(source, given, to_place(place), to_plan_options(options))};
    });
  });
}

flashmask_status flashmask_stream_capture(int32_t device_index, void* stream, uint64_t* capture) {
  return guard([&] {
    require(capture, "capture");
    *capture = flashmask::stream_capture({flashmask::DeviceType::cuda, device_index}, stream);
  });
}
