// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "flashmask/error.h"
#include "mask/formula/preparation.h"

namespace flashmask::cuda {

constexpr int kMostConditions = 32, kMostNumbers = 16, kMostGroups = 12;  // what fits into a kernel's arguments
constexpr std::int64_t kMostPlanes = 65535;
constexpr std::size_t kPieceAlignment = 256;

/// A formula on the device, passed by value.
struct DeviceFormula {
  PreparedCondition conditions[kMostConditions];
  RowNumbers numbers[kMostNumbers];
  GroupTables groups[kMostGroups];
  SearchSizes sizes;
  std::int32_t condition_count;
  unsigned number_count, group_count;
  std::int32_t* runs;   ///< [groups, planes]
  std::int32_t* found;  ///< how many ranges the busiest column has, or what was found instead
};

/// Where the trees and tables of a formula lie in its workspace.
class Layout {
 public:
  Layout(Preparation& made, void* memory) : memory_(static_cast<std::byte*>(memory)) {
    const auto planes = static_cast<std::size_t>(made.sizes.planes), rows = static_cast<std::size_t>(made.sizes.rows);
    const auto levels = static_cast<std::size_t>(made.sizes.levels);
    runs = take<std::int32_t>(planes * made.groups.size());
    for (RowNumbers& numbers : made.numbers)
      numbers.tree = take<KeyRange>(2 * planes * static_cast<std::size_t>(made.sizes.places));
    for (std::size_t i = 0; i < made.groups.size(); ++i) {
      GroupTables& tables = made.groups[i];
      const std::size_t slots = RowGroups::room_for(rows), nodes = RowGroups::room_for(rows * levels);
      tables.slot_room = static_cast<std::int64_t>(slots);
      tables.node_room = static_cast<std::int64_t>(nodes);
      tables.runs = runs + i * planes;
      tables.slots = take<std::int32_t>(planes * slots);
      tables.nodes = take<unsigned long long>(planes * nodes);
      tables.children = take<std::uint32_t>(planes * nodes);
    }
  }

  std::size_t bytes() const { return bytes_; }

  std::int32_t* runs;

 private:
  template <class T>
  T* take(std::size_t count) {
    const std::size_t begin = bytes_;
    bytes_ += (count * sizeof(T) + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    return reinterpret_cast<T*>(memory_ + begin);
  }

  std::byte* memory_;
  std::size_t bytes_ = 0;
};

inline void check_length(const std::string& what, std::int64_t given, std::int64_t most) {
  if (given <= most) return;
  throw Error(Status::unsupported, "find_ranges: the formula has " + std::to_string(given) + " " + what +
                                       ", a GPU takes " + std::to_string(most) + "; find its ranges on the CPU");
}

inline Preparation prepared_for_gpu(const Formula& formula) {
  Preparation made = prepared(formula);
  check_length("conditions", std::ssize(made.conditions), kMostConditions);
  check_length("different numbers of rows", std::ssize(made.numbers), kMostNumbers);
  check_length("different equalities", std::ssize(made.groups), kMostGroups);
  check_length("batch entries and heads", made.sizes.planes, kMostPlanes);
  return made;
}

inline DeviceFormula on_device(const Preparation& made, std::int32_t* runs, std::int32_t* found) {
  DeviceFormula formula{};
  std::ranges::copy(made.conditions, formula.conditions);
  std::ranges::copy(made.numbers, formula.numbers);
  std::ranges::copy(made.groups, formula.groups);
  formula.sizes = made.sizes;
  formula.condition_count = static_cast<std::int32_t>(made.conditions.size());
  formula.number_count = static_cast<unsigned>(made.numbers.size());
  formula.group_count = static_cast<unsigned>(made.groups.size());
  formula.runs = runs;
  formula.found = found;
  return formula;
}

}  // namespace flashmask::cuda
