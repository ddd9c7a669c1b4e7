// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "c_api/guard.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/reorder.h"
#include "flashmask/schedule.h"
#include "flashmask/tensor.h"

struct flashmask_mask {
  flashmask::Mask mask;
};

namespace flashmask::c_api {

/// An array argument: NULL only when it is empty.
template <typename T>
std::span<const T> array(const T* data, std::int64_t count, const char* name) {
  if (count < 0) {
    throw Error(Status::invalid_argument,
                std::string("the length of ") + name + " is " + std::to_string(count) + "; give a length >= 0");
  }
  if (count > 0) require(data, name);
  return {data, static_cast<std::size_t>(count)};
}

/// Converts an argument to an enumerator of `Enum`, whose values are 0 … last.
template <typename Enum>
Enum enumerator(std::int64_t value, Enum last, const std::string& name) {
  if (value < 0 || value > static_cast<std::int64_t>(last)) {
    throw Error(Status::invalid_argument, name + " is " + std::to_string(value) + "; give 0 to " +
                                              std::to_string(static_cast<std::int64_t>(last)));
  }
  return static_cast<Enum>(value);
}

inline flashmask_mask* make_handle(Mask mask) { return new flashmask_mask{std::move(mask)}; }

/// Returns the product of an array's sizes; throws when a size is negative or the product too large.
std::size_t element_count(std::span<const std::int64_t> sizes, const char* name);

/// A shape argument, which may not be NULL.
MaskShape to_shape(const flashmask_mask_shape* shape);
Direction to_direction(std::int32_t direction);
Visit to_visit(std::int32_t visit);
std::optional<MaskForm> to_form(std::int32_t choice);
/// A problem argument, which may not be NULL.
Problem to_problem(const flashmask_problem* problem);

/// The packed DropoutPlace fields of a struct; NULL where there is none.
std::span<const std::int32_t> to_place(const std::int32_t* place, std::int64_t size);

/// Returns a view that points into the reordering.
flashmask_reordering_view to_view(const Reordering& reordering);

/// `name` is for messages.
TensorView to_tensor_view(const flashmask_tensor& tensor, const std::string& name);

}  // namespace flashmask::c_api
