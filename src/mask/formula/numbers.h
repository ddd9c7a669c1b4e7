// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define FLASHMASK_ON_BOTH __host__ __device__ inline
#else
#define FLASHMASK_ON_BOTH inline
#endif

// Numbers of tokens as int64 keys that compare as the numbers do, on the CPU and on a GPU.
namespace flashmask {

enum class NumberType { boolean, i32, i64, f32, f64 };

/// One number per (batch entry, head, token); strides in elements, 0 along what it does not depend on.
struct TokenNumbers {
  const void* data;  ///< nullptr: each token's own index
  std::int64_t strides[3];
  NumberType type;

  bool operator==(const TokenNumbers&) const = default;
};

/// A batch entry and a head.
struct Plane {
  std::int64_t entry, head;
};

/// Keys are ordered as numbers are, and −0 has the key of 0.
FLASHMASK_ON_BOTH std::int64_t key_of_double(double number) {
  const double plain = number == 0 ? 0.0 : number;
  std::int64_t bits;
  memcpy(&bits, &plain, sizeof(bits));
  return bits < 0 ? bits ^ INT64_MAX : bits;
}

/// Returns the key of a token's number, and sets `nan` where that is not a number.
FLASHMASK_ON_BOTH std::int64_t key_of(const TokenNumbers& numbers, const Plane& plane, std::int64_t token, bool& nan) {
  if (numbers.data == nullptr) return token;
  const std::int64_t at =
      plane.entry * numbers.strides[0] + plane.head * numbers.strides[1] + token * numbers.strides[2];
  switch (numbers.type) {
    case NumberType::boolean:
      return static_cast<const std::uint8_t*>(numbers.data)[at] != 0;
    case NumberType::i32:
      return static_cast<const std::int32_t*>(numbers.data)[at];
    case NumberType::i64:
      return static_cast<const std::int64_t*>(numbers.data)[at];
    default:
      break;
  }
  const double number = numbers.type == NumberType::f32
                            ? static_cast<double>(static_cast<const float*>(numbers.data)[at])
                            : static_cast<const double*>(numbers.data)[at];
  nan = nan || number != number;
  return key_of_double(number);
}

}  // namespace flashmask
