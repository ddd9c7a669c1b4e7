// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Arrays that a kernel's shape may have none of. C++ has no arrays of length 0, and not every compiler allows them.
namespace flashmask::cuda::sm90 {

template <class T, int kCount>
struct ArrayOf {
  using Type = T[kCount];
};
template <class T>
struct ArrayOf<T, 0> {
  /// An array of none, whose elements nobody asks for.
  struct Type {
    __device__ T& operator[](int) const;
  };
};

/// T[kCount]; of a count of 0 an empty type, whose members are to be declared [[no_unique_address]].
template <class T, int kCount>
using SomeOf = typename ArrayOf<T, kCount>::Type;

}  // namespace flashmask::cuda::sm90
