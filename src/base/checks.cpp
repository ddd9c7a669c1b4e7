// SPDX-License-Identifier: Apache-2.0
#include "base/checks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "flashmask/error.h"

namespace flashmask {

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool separate = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (separate) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::size_t count, const std::string& noun) {
  return grouped(static_cast<std::int64_t>(count)) + " " + noun + (count == 1 ? "" : "s");
}

std::string shortest(double number) {
  std::array<char, 32> text{};
  std::to_chars(text.data(), text.data() + text.size(), number);
  return text.data();
}

void refuse(const std::string& message) { throw Error(Status::invalid_argument, message); }

bool is_size(std::int64_t value) { return value >= 0 && value <= std::numeric_limits<std::int32_t>::max(); }

void check_size(const std::string& function, const std::string& argument, std::int64_t value) {
  if (!is_size(value)) {
    refuse(function + ": " + argument + " is " + grouped(value) + "; give a size from 0 to 2,147,483,647 (2^31 - 1)");
  }
}

void check_shape(const std::string& function, const MaskShape& shape) {
  check_size(function, "shape.batch", shape.batch);
  check_size(function, "shape.heads", shape.heads);
  check_size(function, "shape.rows", shape.rows);
  check_size(function, "shape.columns", shape.columns);
  check_size(function, "shape.batch x shape.heads", shape.batch * shape.heads);
}

void refuse_memory(const std::string& function, std::size_t bytes) {
  throw Error(Status::out_of_memory, function + ": no memory for " + grouped(static_cast<std::int64_t>(bytes)) +
                                         " bytes; give smaller sizes or free memory");
}

std::size_t element_count(const std::string& function, std::initializer_list<std::int64_t> sizes) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 64;
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size > limit / product) {
      throw Error(Status::out_of_memory,
                  function + ": more than " + grouped(limit) + " elements, which no memory holds; give smaller sizes");
    }
    product *= size;
  }
  return static_cast<std::size_t>(product);
}

}  // namespace flashmask
