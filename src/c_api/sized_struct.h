// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/struct_layout.h"

// Reads and writes structs that begin with their size across the C ABI: a program's structs may be older and shorter,
// or newer and longer, than this library's. `name` is what messages call the argument.
namespace flashmask::c_api {

/// Returns the size of the caller's struct from its first field. A value that cannot be a struct's size was never set:
/// it is refused before memory after the struct is read or written.
template <typename Struct>
std::size_t size_of(const Struct* given, const std::string& name) {
  constexpr std::uint64_t kLargest = 4096;
  static_assert(sizeof(Struct) <= kLargest);
  require(given, name.c_str());
  std::uint64_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < sizeof(size) || size > kLargest) {
    const std::string type = Layout<Struct>::name;
    throw Error(Status::invalid_argument, name + ".struct_size is " + std::to_string(size) + "; set it to sizeof(" +
                                              type + "), as FLASHMASK_INIT(" + type + ") does");
  }
  return static_cast<std::size_t>(size);
}

/// Reads the caller's struct, with zeros for fields that it does not have.
template <typename Struct>
Struct read_struct(const Struct* given, const std::string& name) {
  const std::size_t size = size_of(given, name);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(Struct) && std::any_of(bytes + sizeof(Struct), bytes + size, [](auto byte) { return byte != 0; })) {
    throw Error(
        Status::invalid_argument,
        std::string(Layout<Struct>::name) + " has " + std::to_string(size - sizeof(Struct)) +
            " bytes that this library (" + flashmask_version() +
            ") does not know and that are not 0; leave fields that are newer than it at 0, or load a newer one");
  }
  const std::size_t known = std::min(size, sizeof(Struct));
  Struct read;
  std::memcpy(&read, given, known);
  std::memset(reinterpret_cast<unsigned char*>(&read) + known, 0, sizeof(Struct) - known);
  return read;
}

/// read_struct() for an argument that may be NULL, which means all zero.
template <typename Struct>
Struct read_optional_struct(const Struct* given, const std::string& name) {
  return given == nullptr ? Struct{} : read_struct(given, name);
}

/// read_struct() for an array. The size in the first element is the stride of all.
template <typename Struct>
std::vector<Struct> read_structs(const Struct* given, std::int64_t count, const std::string& name) {
  std::vector<Struct> read;
  if (array(given, count, name.c_str()).empty()) return read;
  const std::size_t stride = size_of(given, name + "[0]");
  const auto* element = reinterpret_cast<const unsigned char*>(given);
  for (std::int64_t i = 0; i < count; ++i, element += stride) {
    const auto* const one = reinterpret_cast<const Struct*>(element);
    const std::string label = name + "[" + std::to_string(i) + "]";
    if (const std::size_t size = size_of(one, label); size != stride) {
      throw Error(Status::invalid_argument, label + ".struct_size is " + std::to_string(size) + " but that of " + name +
                                                "[0] is " + std::to_string(stride) + "; set all to the same");
    }
    read.push_back(read_struct(one, label));
  }
  return read;
}

/// Writes a result except its size field, and no more of it than the caller's struct holds.
template <typename Struct>
void write_struct(const Struct& result, Struct* to, const std::string& name) {
  constexpr std::size_t kSize = sizeof(std::uint64_t);
  const std::size_t size = std::min(size_of(to, name), sizeof(Struct));
  std::memcpy(reinterpret_cast<char*>(to) + kSize, reinterpret_cast<const char*>(&result) + kSize, size - kSize);
}

}  // namespace flashmask::c_api
