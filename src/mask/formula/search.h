// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "mask/formula/formula.h"
#include "mask/formula/row_groups.h"

// Walks down the rows of one column and finds where a formula begins to hold and where it ceases to, on the CPU and on
// a GPU. Nothing is kept but the row: a conjunction asks its parts in turn for the next row where they hold until all
// name the same, and holds until the first of its parts does not.
namespace flashmask {

constexpr int kMostDepth = 16;  // to which conjunctions and disjunctions nest

/// The numbers of one side of conditions, prepared: a tree per plane. `tree` nullptr: each row's own index.
struct RowNumbers {
  TokenNumbers given;
  KeyRange* tree;  ///< [planes, 2 places]
};

/// Groups of equal rows, per plane. Rows that some fact in `keep` hides are in none.
struct GroupTables {
  static constexpr int kMostKept = 2;

  std::int32_t numbers;          ///< which RowNumbers
  std::int32_t keep[kMostKept];  ///< which RowNumbers, -1: none
  std::int64_t slot_room, node_room;
  std::int32_t* runs;         ///< [planes]: how many runs there are
  std::int32_t* slots;        ///< [planes, slot_room]
  unsigned long long* nodes;  ///< [planes, node_room]
  std::uint32_t* children;    ///< [planes, node_room]
};

/// A condition as searches read it.
struct PreparedCondition {
  ConditionKind kind;
  std::int16_t parts;
  std::int16_t end;      ///< the condition after its last part
  std::int16_t numbers;  ///< which RowNumbers; -1: each row's own index
  std::int16_t groups;   ///< which GroupTables; -1: none
  TokenNumbers columns;
};

/// The sizes that all searches share.
struct SearchSizes {
  std::int32_t rows, columns, heads, planes;
  std::int32_t places;  ///< leaves of a tree
  std::int32_t levels;  ///< of tries over the rows
};

/// What a leaf compares with in one column.
struct ColumnNumber {
  std::int64_t key;
  std::int32_t slot;  ///< of the groups of rows equal to it; RowGroups::kNone where there are none
};

FLASHMASK_ON_BOTH RowGroups groups_of(const GroupTables& tables, const RowNumbers& numbers, const SearchSizes& sizes,
                                      std::int64_t plane) {
  const auto runs = static_cast<std::uint64_t>(tables.runs[plane]);
  return {.numbers = numbers.tree + (2 * plane + 1) * sizes.places,
          .slots = tables.slots + plane * tables.slot_room,
          .nodes = tables.nodes + plane * tables.node_room,
          .children = tables.children + plane * tables.node_room,
          .slot_mask = static_cast<unsigned>(RowGroups::room_for(runs) - 1),
          .node_mask = static_cast<unsigned>(RowGroups::room_for(runs * static_cast<unsigned>(sizes.levels)) - 1),
          .levels = sizes.levels};
}

/// Whether a row begins a run of equal numbers, among those that no fact hides. `numbers`: all of a formula.
FLASHMASK_ON_BOTH bool begins_run(const GroupTables& tables, const RowNumbers* numbers, const Plane& plane,
                                  std::int64_t row) {
  bool nan = false, kept_before = row > 0;
  for (const std::int32_t fact : tables.keep) {
    if (fact < 0) continue;
    if (key_of(numbers[fact].given, plane, row, nan) == 0) return false;
    kept_before = kept_before && key_of(numbers[fact].given, plane, row - 1, nan) != 0;
  }
  const TokenNumbers& own = numbers[tables.numbers].given;
  return !kept_before || key_of(own, plane, row, nan) != key_of(own, plane, row - 1, nan);
}

FLASHMASK_ON_BOTH ConditionKind opposite(ConditionKind kind) {
  switch (kind) {
    case ConditionKind::less:
      return ConditionKind::greater_equal;
    case ConditionKind::less_equal:
      return ConditionKind::greater;
    case ConditionKind::greater:
      return ConditionKind::less_equal;
    case ConditionKind::greater_equal:
      return ConditionKind::less;
    case ConditionKind::equal:
      return ConditionKind::unequal;
    default:
      return ConditionKind::equal;
  }
}

/// The first row from `row` on whose own index compares so with a number, or any beyond the last. `kind` is less_equal,
/// greater_equal, equal or unequal, as below.
FLASHMASK_ON_BOTH std::int64_t next_index(ConditionKind kind, std::int64_t row, std::int64_t rows, std::int64_t key) {
  if (kind == ConditionKind::less_equal) return row <= key ? row : rows;
  if (kind == ConditionKind::greater_equal) return key < row ? row : key;
  if (kind == ConditionKind::equal) return key < row ? rows : key;
  return key == row ? row + 1 : row;
}

/// The first row from `row` on whose number compares so with a column's; `kind` is not equal.
FLASHMASK_ON_BOTH std::int64_t next_in_tree(ConditionKind kind, const KeyRange* tree, std::int32_t places,
                                            std::int32_t row, std::int64_t key) {
  if (kind == ConditionKind::less_equal)
    return next_place(tree, places, row, [key](const KeyRange& range) { return range.least <= key; });
  if (kind == ConditionKind::greater_equal)
    return next_place(tree, places, row, [key](const KeyRange& range) { return range.greatest >= key; });
  return next_place(tree, places, row,
                    [key](const KeyRange& range) { return range.least != key || range.greatest != key; });
}

/// A formula of which one plane is searched.
struct PlaneFormula {
  const PreparedCondition* conditions;
  const RowNumbers* numbers;
  const GroupTables* groups;
  SearchSizes sizes;
  std::int64_t plane;

  /// What a leaf compares with in a column.
  FLASHMASK_ON_BOTH std::int64_t column_key(const PreparedCondition& leaf, std::int64_t column, bool& nan) const {
    if (leaf.kind == ConditionKind::row_fact) return 1;  // booleans that are set are not less
    return key_of(leaf.columns, {plane / sizes.heads, plane % sizes.heads}, column, nan);
  }
  FLASHMASK_ON_BOTH std::int32_t slot_of(const PreparedCondition& leaf, std::int64_t key) const {
    return leaf.groups < 0 ? RowGroups::kNone : group_of(leaf).slot_of(key);
  }

  /// The first row from `row` on where a leaf is `wanted`, or any beyond the last.
  FLASHMASK_ON_BOTH std::int64_t next(const PreparedCondition& leaf, const ColumnNumber& column, std::int32_t row,
                                      bool wanted) const {
    if (leaf.kind == ConditionKind::column_fact) return (column.key != 0) == wanted ? row : sizes.rows;
    const ConditionKind stated = leaf.kind == ConditionKind::row_fact ? ConditionKind::greater_equal : leaf.kind;
    ConditionKind kind = wanted ? stated : opposite(stated);
    std::int64_t key = column.key;
    if (kind == ConditionKind::less || kind == ConditionKind::greater) {  // of whole keys, at most the one before
      const bool less = kind == ConditionKind::less;
      if (key == (less ? INT64_MIN : INT64_MAX)) return sizes.rows;
      key += less ? -1 : 1;
      kind = less ? ConditionKind::less_equal : ConditionKind::greater_equal;
    }
    if (leaf.numbers < 0) return next_index(kind, row, sizes.rows, key);
    const KeyRange* const tree = numbers[leaf.numbers].tree + 2 * plane * sizes.places;
    if (kind != ConditionKind::equal) return next_in_tree(kind, tree, sizes.places, row, key);
    if (tree[sizes.places + row].least == column.key) return row;
    return column.slot == RowGroups::kNone ? sizes.rows : group_of(leaf).next_run(column.slot, row, sizes.rows);
  }

 private:
  FLASHMASK_ON_BOTH RowGroups group_of(const PreparedCondition& leaf) const {
    const GroupTables& tables = groups[leaf.groups];
    return groups_of(tables, numbers[tables.numbers], sizes, plane);
  }
};

/// Searches one column. Leaves(index of a condition, row, wanted) is the first row where a leaf is as wanted.
template <class Leaves>
class Search {
 public:
  FLASHMASK_ON_BOTH Search(const PreparedCondition* conditions, std::int32_t rows, Leaves& leaves)
      : conditions_(conditions), rows_(rows), leaves_(leaves) {}

  /// Writes the ranges [2 slots] of the column; returns how many, slots + 1 where it has more, or kSearchTooLong.
  FLASHMASK_ON_BOTH std::int32_t find(bool visible, std::int32_t slots, std::int32_t* ranges) {
    std::int32_t count = 0;
    for (std::int32_t row = 0; row < rows_;) {
      const std::int32_t begin = next(row, visible);
      if (steps_ < 0) return kSearchTooLong;
      if (begin == rows_) break;
      if (count == slots) return slots + 1;
      row = next(begin, !visible);
      if (steps_ < 0) return kSearchTooLong;
      ranges[2 * count] = begin;
      ranges[2 * count + 1] = row;
      ++count;
    }
    for (std::int32_t each = 2 * count; each < 2 * slots; ++each) ranges[each] = rows_;
    return count;
  }

 private:
  /// A conjunction or disjunction whose parts are asked: for the next row where all of them are as wanted, or any.
  struct Frame {
    std::int16_t at, part, agreed;  ///< agreed: parts in a row that named `row`
    std::int32_t row, first;        ///< first: the first row that a part named, where any will do
  };

  /// The first row from `row` on where the formula is `wanted`, or the number of rows.
  FLASHMASK_ON_BOTH std::int32_t next(std::int32_t row, bool wanted) {
    Frame frames[kMostDepth];
    for (int at = 0, depth = 0;;) {
      for (; conditions_[at].kind <= ConditionKind::disjunction; ++at)
        frames[depth++] = {static_cast<std::int16_t>(at), static_cast<std::int16_t>(at + 1), 0, row, rows_};
      std::int64_t named = leaves_(at, row, wanted);
      named = named < rows_ ? named : rows_;
      while (depth > 0 && answers(frames[depth - 1], static_cast<std::int32_t>(named), wanted)) {
        const Frame& done = frames[--depth];
        named = asks_all(done, wanted) ? done.row : done.first;
      }
      if (depth == 0) return static_cast<std::int32_t>(named);
      at = frames[depth - 1].part;
      row = frames[depth - 1].row;
    }
  }

  FLASHMASK_ON_BOTH bool asks_all(const Frame& frame, bool wanted) const {
    return (conditions_[frame.at].kind == ConditionKind::conjunction) == wanted;
  }

  /// Takes what a part named; returns whether that is the answer, else moves on to the part that is to be asked next.
  FLASHMASK_ON_BOTH bool answers(Frame& frame, std::int32_t named, bool wanted) {
    const PreparedCondition& whole = conditions_[frame.at];
    const std::int16_t following = conditions_[frame.part].end;
    if (asks_all(frame, wanted)) {
      frame.agreed = static_cast<std::int16_t>(named == frame.row ? frame.agreed + 1 : 1);
      frame.row = named;
      frame.part = following == whole.end ? static_cast<std::int16_t>(frame.at + 1) : following;
      return named == rows_ || frame.agreed == whole.parts || --steps_ < 0;
    }
    frame.first = named < frame.first ? named : frame.first;
    frame.part = following;
    return following == whole.end || frame.first == frame.row;
  }

  const PreparedCondition* conditions_;
  std::int32_t rows_;
  Leaves& leaves_;
  int steps_ = 1 << 16;  ///< what is left of the steps that a column may take; negative: it gave up
};

}  // namespace flashmask
