// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "mask/formula/numbers.h"
#include "mask/formula/row_tree.h"

// Finds rows of equal numbers, which may lie anywhere. A hash table gives each number that occurs a slot. Where its
// runs begin is a trie over the rows, 32 children per node, whose nodes lie in a second hash table under (slot, level,
// place): what is found does not depend on the order in which runs are inserted.
namespace flashmask {

FLASHMASK_ON_BOTH std::uint64_t hash(std::uint64_t value) {
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93;
  value = (value ^ value >> 32) * 0xd6e8feb86659fd93;
  return value ^ value >> 32;
}

/// Sets *at to `value` where it is `expected`; returns what it was.
template <class T>
FLASHMASK_ON_BOTH T replace(T* at, T expected, T value) {
#ifdef __CUDA_ARCH__
  return atomicCAS(at, expected, value);
#else
  const T before = *at;
  if (before == expected) *at = value;
  return before;
#endif
}

/// Returns whether the bit was set before.
FLASHMASK_ON_BOTH bool set_bit(std::uint32_t* at, std::uint32_t bit) {
#ifdef __CUDA_ARCH__
  return (atomicOr(at, bit) & bit) != 0;
#else
  const bool before = (*at & bit) != 0;
  *at |= bit;
  return before;
#endif
}

/// The groups of one plane. The tables have room for twice what they hold.
struct RowGroups {
  const KeyRange* numbers;    ///< the leaves of the plane's tree: one per row
  std::int32_t* slots;        ///< [slot_mask + 1]: a row whose number has the slot, kNone: free
  unsigned long long* nodes;  ///< [node_mask + 1]: which node lies here, 0: none
  std::uint32_t* children;    ///< [node_mask + 1]: a bit for each child
  unsigned slot_mask, node_mask;
  int levels;

  static constexpr std::int32_t kNone = -1;

  /// How many levels tries over so many rows have.
  FLASHMASK_ON_BOTH static int levels_of(std::int64_t rows) {
    int levels = 1;
    while (rows > std::int64_t{1} << 5 * levels) ++levels;
    return levels;
  }
  /// The size of a table for so many entries, a power of two.
  FLASHMASK_ON_BOTH static std::uint64_t room_for(std::uint64_t entries) {
    return entries < 2 ? 2 : std::uint64_t{1} << (64 - leading_zeros(2 * entries - 1));
  }

  /// Inserts a row at which a run of equal numbers begins.
  FLASHMASK_ON_BOTH void insert(std::int32_t row) const {
    unsigned slot = static_cast<unsigned>(hash(static_cast<std::uint64_t>(numbers[row].least))) & slot_mask;
    for (;; slot = (slot + 1) & slot_mask) {
      const std::int32_t before = replace(slots + slot, kNone, row);
      if (before == kNone || numbers[before].least == numbers[row].least) break;
    }
    for (int level = 0; level < levels; ++level) {
      const unsigned long long key = key_of_node(slot, level, static_cast<std::uint32_t>(row) >> 5 * level >> 5);
      unsigned at = place_of(key);
      for (;; at = (at + 1) & node_mask) {
        const unsigned long long before = replace(nodes + at, 0ULL, key);
        if (before == 0 || before == key) break;
      }
      if (set_bit(children + at, 1U << (static_cast<std::uint32_t>(row) >> 5 * level & 31))) return;
    }
  }

  /// Returns the slot of a number, or kNone where no run of it was inserted.
  FLASHMASK_ON_BOTH std::int32_t slot_of(std::int64_t number) const {
    unsigned slot = static_cast<unsigned>(hash(static_cast<std::uint64_t>(number))) & slot_mask;
    for (; slots[slot] != kNone; slot = (slot + 1) & slot_mask)
      if (numbers[slots[slot]].least == number) return static_cast<std::int32_t>(slot);
    return kNone;
  }

  /// Returns the first row after `row` at which a run of the slot's number begins, or `none`.
  FLASHMASK_ON_BOTH std::int32_t next_run(std::int32_t slot, std::int32_t row, std::int32_t none) const {
    const auto from = static_cast<std::uint32_t>(row);
    for (int level = 0; level < levels; ++level) {
      const std::uint32_t place = from >> 5 * level;
      const std::uint32_t later = children_of(slot, level, place >> 5) & ~1U << (place & 31);
      if (later != 0) return first_run(slot, level, (place & ~31U) + trailing_zeros(later));
    }
    return none;
  }

 private:
  /// Returns the first row below a child of a node of this level.
  FLASHMASK_ON_BOTH std::int32_t first_run(std::int32_t slot, int level, std::uint32_t place) const {
    while (level-- > 0) place = place * 32 + trailing_zeros(children_of(slot, level, place));
    return static_cast<std::int32_t>(place);
  }

  FLASHMASK_ON_BOTH static unsigned long long key_of_node(std::int64_t slot, int level, std::uint32_t place) {
    return (static_cast<unsigned long long>(slot) << 29 | place) << 3 | static_cast<unsigned>(level + 1);
  }
  FLASHMASK_ON_BOTH unsigned place_of(unsigned long long key) const {
    return static_cast<unsigned>(hash(key)) & node_mask;
  }
  FLASHMASK_ON_BOTH std::uint32_t children_of(std::int32_t slot, int level, std::uint32_t place) const {
    const unsigned long long key = key_of_node(slot, level, place);
    for (unsigned at = place_of(key); nodes[at] != 0; at = (at + 1) & node_mask)
      if (nodes[at] == key) return children[at];
    return 0;
  }
};

}  // namespace flashmask
