// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "c_api/guard.h"
#include "flashmask/error.h"

namespace flashmask::c_api {

inline void check_capacity(const char* name, std::size_t capacity, std::size_t needed) {
  if (capacity >= needed) return;
  throw Error(Status::invalid_argument, std::string(name) + " has a capacity of " + std::to_string(capacity) +
                                            " but the result has " + std::to_string(needed) +
                                            " elements; give a buffer that large");
}

/// Copies a whole result into the caller's buffer, or throws if the buffer is missing or too small. Copies nothing if
/// the buffer is NULL with a capacity of 0.
template <typename T>
void copy_out(std::span<const T> values, T* buffer, std::size_t capacity, const char* name) {
  if (buffer == nullptr && capacity == 0) return;
  require(buffer, name);
  check_capacity(name, capacity, values.size());
  std::ranges::copy(values, buffer);
}

}  // namespace flashmask::c_api
