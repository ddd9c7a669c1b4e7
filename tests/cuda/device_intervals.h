// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "flashmask/interval_mask.h"
#include "flashmask/mask.h"
#include "kit/device_memory.h"

/// Masks of intervals for tests of maps.
namespace flashmask::check {

/// The arrays of a mask, on the device.
class DeviceIntervals {
 public:
  explicit DeviceIntervals(const IntervalMask& mask) {
    const MaskShape& shape = mask.shape();
    for (const std::int32_t* values : {mask.first_begin(), mask.first_end(), mask.second_begin(), mask.second_end()}) {
      arrays_.push_back(
          std::make_unique<DeviceMemory>(static_cast<std::size_t>(shape.batch * shape.heads * shape.columns) * 4));
      arrays_.back()->upload(values);
    }
  }
  const std::int32_t* operator[](std::size_t i) const { return static_cast<const std::int32_t*>(arrays_[i]->data()); }

 private:
  std::vector<std::unique_ptr<DeviceMemory>> arrays_;
};

/// Two ranges a column that begin and end anywhere, or nearly where the column before has them.
inline Mask random_intervals(const MaskShape& shape, bool anywhere) {
  IntervalMask mask(shape);
  std::mt19937 draw(3);
  const auto row = [&] { return static_cast<std::int32_t>(draw() % static_cast<std::uint32_t>(shape.rows + 1)); };
  Interval first{row(), row()}, second{row(), row()};
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.batch * shape.heads * shape.columns); ++i) {
    if (anywhere || draw() % 50 == 0) first = {row(), row()}, second = {row(), row()};
    ++first.begin, ++second.end;
    mask.set(i, first, second);
  }
  return Mask(LoweredMask(std::make_shared<const IntervalMask>(std::move(mask)), "drawn"), "drawn");
}

}  // namespace flashmask::check
