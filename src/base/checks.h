// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashmask/mask_shape.h"

namespace flashmask {

/// Formats 4200 as "4,200".
std::string grouped(std::int64_t value);

/// Formats a count and its noun: "1 document", "3 documents".
std::string counted(std::size_t count, const std::string& noun);

/// Returns the shortest text that reads back as the same number.
std::string shortest(double number);

/// Throws Status::invalid_argument.
[[noreturn]] void refuse(const std::string& message);

/// Whether a value is in [0, 2^31): masks index rows and columns with 32 bits.
bool is_size(std::int64_t value);

/// Throws unless is_size(value).
void check_size(const std::string& function, const std::string& argument, std::int64_t value);

/// Throws unless all four are sizes, and so is the number of heads of all batch entries: code counts these even where
/// they hold no scores.
void check_shape(const std::string& function, const MaskShape& shape);

/// Returns the product of sizes, each at least 0; throws Status::out_of_memory where no memory could hold that many.
std::size_t element_count(const std::string& function, std::initializer_list<std::int64_t> sizes);

/// Throws Status::out_of_memory: there is no memory for this many bytes.
[[noreturn]] void refuse_memory(const std::string& function, std::size_t bytes);

/// Returns `count` zeros; throws Status::out_of_memory where there is no memory for them.
template <class T>
std::vector<T> zeros(const std::string& function, std::size_t count) {
  try {
    return std::vector<T>(count);
  } catch (const std::bad_alloc&) {
    refuse_memory(function, count * sizeof(T));
  } catch (const std::length_error&) {
    refuse_memory(function, count * sizeof(T));
  }
}

}  // namespace flashmask
