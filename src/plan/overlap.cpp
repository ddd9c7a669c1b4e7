// SPDX-License-Identifier: Apache-2.0
#include "plan/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace flashmask {
namespace {

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) { return -floor_quotient(-a, b); }

struct Range {
  std::int64_t least = 0, most = 0;
};

/// The distances between elements of one or two tensors: sums of a multiple of each axis' stride.
class Distances {
 public:
  /// Adds the multiples of `stride` from `low` to `high`; returns false if there are multiples of it already.
  bool add(std::int64_t stride, std::int64_t low, std::int64_t high) {
    if (stride < 0) return add(-stride, -high, -low);
    range_.least += stride * low;
    range_.most += stride * high;
    const auto end = axes_.begin() + count_;
    const auto same = std::find_if(axes_.begin(), end, [&](const Axis& axis) { return axis.stride == stride; });
    if (same == end) axes_[static_cast<std::size_t>(count_++)] = {stride};
    same->low += low;
    same->high += high;
    return same == end;
  }

  /// Whether `distance` is among them; if `only_moved`, the sum whose multiples are all 0 does not count.
  bool reach(std::int64_t distance, bool only_moved) {
    std::sort(axes_.begin(), axes_.begin() + count_, [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
    int steps = 1000;
    return reach(0, distance, range_, !only_moved, steps);
  }

 private:
  struct Axis {
    std::int64_t stride, low = 0, high = 0;
  };
  /// Tries to reach `distance` with the axes from `from` on, whose sums lie in `range`. Where axes nest, as they do in
  /// memory, few multiples of the largest stride leave a rest that the other axes can reach.
  bool reach(int from, std::int64_t distance, Range range, bool moved, int& steps) const {
    if (from == count_) return distance == 0 && moved;
    const Axis& axis = axes_[static_cast<std::size_t>(from)];
    const Range rest{range.least - axis.stride * axis.low, range.most - axis.stride * axis.high};
    const std::int64_t last = std::min(axis.high, floor_quotient(distance - rest.least, axis.stride));
    for (std::int64_t i = std::max(axis.low, ceil_quotient(distance - rest.most, axis.stride)); i <= last; ++i) {
      if (--steps < 0) return false;
      if (reach(from + 1, distance - i * axis.stride, rest, moved || i != 0, steps)) return true;
    }
    return false;
  }

  std::array<Axis, 9> axes_;  ///< four per tensor, and one for the bytes of an element
  int count_ = 0;
  Range range_;
};

/// Calls body(size, stride) for each axis along which elements have different addresses.
template <class Body>
void for_each_axis(const TensorView& tensor, const Body& body) {
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis)
    if (tensor.shape[axis] > 1 && tensor.strides[axis] != 0) body(tensor.shape[axis], tensor.strides[axis]);
}

bool repeats(const TensorView& tensor) {
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis)
    if (tensor.shape[axis] > 1 && tensor.strides[axis] == 0) return true;
  return false;
}

std::int64_t address(const TensorView& tensor) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
}

/// Returns the addresses of the first and the last byte.
Range bytes_of(const TensorView& tensor) {
  const auto width = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  Range bytes{address(tensor), address(tensor) + width - 1};
  for_each_axis(tensor, [&](std::int64_t size, std::int64_t stride) {
    (stride < 0 ? bytes.least : bytes.most) += (size - 1) * stride * width;
  });
  return bytes;
}

}  // namespace

bool overlap(const TensorView& a, const TensorView& b) {
  const Range bytes_a = bytes_of(a), bytes_b = bytes_of(b);
  if (bytes_a.most < bytes_b.least || bytes_b.most < bytes_a.least) return false;
  const auto width_a = static_cast<std::int64_t>(size_in_bytes(a.dtype));
  const auto width_b = static_cast<std::int64_t>(size_in_bytes(b.dtype));
  Distances distances;
  for_each_axis(a, [&](std::int64_t size, std::int64_t stride) { distances.add(stride * width_a, 0, size - 1); });
  for_each_axis(b, [&](std::int64_t size, std::int64_t stride) { distances.add(stride * width_b, 1 - size, 0); });
  distances.add(1, 1 - width_b, width_a - 1);
  return distances.reach(address(b) - address(a), false);
}

bool overlaps_itself(const TensorView& tensor) {
  if (repeats(tensor)) return true;
  Distances distances;
  bool alike = false;
  for_each_axis(tensor, [&](std::int64_t size, std::int64_t stride) {
    alike = !distances.add(stride, 1 - size, size - 1) || alike;
  });
  return alike || distances.reach(0, true);
}

}  // namespace flashmask
