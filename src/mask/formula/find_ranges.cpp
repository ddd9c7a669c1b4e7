// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/bodies.h"
#include "base/checks.h"
#include "base/piece_count.h"
#include "mask/formula/preparation.h"

namespace flashmask {
namespace {

constexpr std::int64_t kColumnsPerPiece = 4096;

/// The trees and tables of one formula, of all planes.
class Prepared {
 public:
  explicit Prepared(const Formula& formula) : made_(prepared(formula)) {
    trees_.reserve(made_.numbers.size());
    for (RowNumbers& numbers : made_.numbers) make_trees(numbers);
    groups_.resize(made_.groups.size());
    for (std::size_t i = 0; i < made_.groups.size() && !nan_; ++i) make_groups(made_.groups[i], groups_[i]);
  }

  const Preparation& made() const { return made_; }
  bool nan() const { return nan_; }

 private:
  struct Tables {
    std::vector<std::int32_t> runs, slots;
    std::vector<unsigned long long> nodes;
    std::vector<std::uint32_t> children;
  };

  Plane plane_of(std::int64_t plane) const { return {plane / made_.sizes.heads, plane % made_.sizes.heads}; }

  void make_trees(RowNumbers& numbers) {
    const auto places = static_cast<std::size_t>(made_.sizes.places);
    const std::size_t nodes = 2 * places * static_cast<std::size_t>(made_.sizes.planes);
    numbers.tree = trees_.emplace_back(std::make_unique_for_overwrite<KeyRange[]>(nodes)).get();
    for (std::int64_t plane = 0; plane < made_.sizes.planes; ++plane) {
      KeyRange* const tree = numbers.tree + 2 * static_cast<std::size_t>(plane) * places;
      for (std::int64_t row = 0; row < made_.sizes.rows; ++row) {
        const std::int64_t key = key_of(numbers.given, plane_of(plane), row, nan_);
        tree[places + static_cast<std::size_t>(row)] = {key, key};
      }
      std::fill(tree + places + made_.sizes.rows, tree + 2 * places, beyond_rows());
      for (std::size_t node = places - 1; node > 0; --node) tree[node] = joined(tree[2 * node], tree[2 * node + 1]);
    }
  }

  void make_groups(GroupTables& to, Tables& memory) {
    const SearchSizes& sizes = made_.sizes;
    std::vector<std::vector<std::int32_t>> begins(static_cast<std::size_t>(sizes.planes));
    for (std::int64_t plane = 0; plane < sizes.planes; ++plane) {
      auto& own = begins[static_cast<std::size_t>(plane)];
      for (std::int32_t row = 0; row < sizes.rows; ++row)
        if (begins_run(to, made_.numbers.data(), plane_of(plane), row)) own.push_back(row);
      memory.runs.push_back(static_cast<std::int32_t>(own.size()));
    }
    give_room(to, memory);
    for (std::int64_t plane = 0; plane < sizes.planes; ++plane) {
      const RowGroups groups = groups_of(to, made_.numbers[static_cast<std::size_t>(to.numbers)], sizes, plane);
      for (const std::int32_t row : begins[static_cast<std::size_t>(plane)]) groups.insert(row);
    }
  }

  void give_room(GroupTables& to, Tables& memory) const {
    const auto most = static_cast<std::uint64_t>(*std::ranges::max_element(memory.runs));
    const auto levels = static_cast<std::uint64_t>(made_.sizes.levels);
    const std::uint64_t slots = RowGroups::room_for(most), nodes = RowGroups::room_for(most * levels);
    memory.slots.assign(slots * memory.runs.size(), RowGroups::kNone);
    memory.nodes.assign(nodes * memory.runs.size(), 0);
    memory.children.assign(nodes * memory.runs.size(), 0);
    to.slot_room = static_cast<std::int64_t>(slots);
    to.node_room = static_cast<std::int64_t>(nodes);
    to.runs = memory.runs.data();
    to.slots = memory.slots.data();
    to.nodes = memory.nodes.data();
    to.children = memory.children.data();
  }

  Preparation made_;
  std::vector<std::unique_ptr<KeyRange[]>> trees_;
  std::vector<Tables> groups_;
  bool nan_ = false;
};

/// Whether rows that do not compare so with a number do not with the next one either.
bool is_harder(ConditionKind kind, std::int64_t key, std::int64_t next_key) {
  if (kind == ConditionKind::less || kind == ConditionKind::less_equal) return next_key < key;
  return (kind == ConditionKind::greater || kind == ConditionKind::greater_equal) && next_key > key;
}

/// The leaves of a formula in one column after another. Neighbouring columns ask much the same: an answer serves later
/// questions from any row between the one it was given for and the one that it names, and where the next column's
/// number is harder to reach, the search goes on from there.
class RememberedLeaves {
 public:
  RememberedLeaves(const PlaneFormula& formula, std::size_t conditions) : formula_(formula), known_(conditions) {}

  void begin_column(std::int64_t column, bool first) {
    for (std::size_t at = 0; at < known_.size(); ++at) {
      const PreparedCondition& leaf = formula_.conditions[at];
      if (leaf.kind <= ConditionKind::disjunction) continue;
      Known& known = known_[at];
      const std::int64_t key = formula_.column_key(leaf, column, nan_);
      if (!first && key == known.column.key) continue;
      for (const bool wanted : {false, true}) {
        const bool harder = !first && is_harder(wanted ? leaf.kind : opposite(leaf.kind), known.column.key, key);
        for (Answer& answer : known.answers[wanted].last)
          answer = harder ? Answer{answer.from, answer.found} : Answer{};
      }
      known.column = {key, formula_.slot_of(leaf, key)};
    }
  }

  std::int64_t operator()(int at, std::int32_t row, bool wanted) {
    Known& known = known_[static_cast<std::size_t>(at)];
    Answers& answers = known.answers[wanted];
    for (Answer& answer : answers.last)
      if (answer.from <= row && row <= answer.found) {
        if (!answer.holds) answer = {answer.from, next(at, answer.found, wanted), true};
        return answer.found;
      }
    const std::int64_t found = next(at, row, wanted);
    if (found > row) answers.last[answers.oldest ^= 1] = {row, found, true};  // that a row holds is quickly seen
    return found;
  }

  bool nan() const { return nan_; }

 private:
  /// No row in [from, found) is as wanted; row `found` is, where that `holds` in this column.
  struct Answer {
    std::int64_t from = 0, found = -1;
    bool holds = false;
  };
  /// The last two: down a column, a leaf is asked about its first range and about what follows.
  struct Answers {
    Answer last[2];
    int oldest = 0;
  };
  struct Known {
    ColumnNumber column;
    Answers answers[2];
  };

  std::int64_t next(int at, std::int64_t row, bool wanted) const {
    if (row >= formula_.sizes.rows) return row;
    const auto leaf = static_cast<std::size_t>(at);
    return formula_.next(formula_.conditions[at], known_[leaf].column, static_cast<std::int32_t>(row), wanted);
  }

  const PlaneFormula& formula_;
  std::vector<Known> known_;
  bool nan_ = false;
};

/// Searches columns [begin, end) of a plane; ends early where one has too many ranges, or `most` says that another had.
void search(const Formula& formula, const Preparation& made, std::int64_t plane, std::int64_t begin, std::int64_t end,
            std::int32_t* ranges, std::atomic<std::int32_t>& most) {
  const PlaneFormula own{made.conditions.data(), made.numbers.data(), made.groups.data(), made.sizes, plane};
  RememberedLeaves leaves(own, made.conditions.size());
  std::int32_t found = 0;
  for (std::int64_t column = begin; column < end && found <= formula.slots; ++column) {
    leaves.begin_column(column, column == begin);
    Search one(made.conditions.data(), made.sizes.rows, leaves);
    const auto at = static_cast<std::size_t>(plane * made.sizes.columns + column);
    std::int32_t* const to = ranges + at * 2 * static_cast<std::size_t>(formula.slots);
    found = std::max(found, one.find(formula.visible, formula.slots, to));
    if (leaves.nan()) found = kNotANumber;
    if (column % 64 == 0) found = std::max(found, most.load(std::memory_order_relaxed));
  }
  std::int32_t before = most.load();
  while (before < found && !most.compare_exchange_weak(before, found)) {
  }
}

}  // namespace

std::int32_t find_ranges(const Formula& formula, std::int32_t* ranges, Executor& executor) {
  const Prepared all(formula);
  if (all.nan()) return kNotANumber;
  const SearchSizes& sizes = all.made().sizes;
  const std::int64_t pieces = piece_count(executor, sizes.columns / kColumnsPerPiece);
  std::atomic<std::int32_t> most = 0;
  run_bodies(executor, static_cast<int>(pieces * sizes.planes), [&](int body) {
    const std::int64_t plane = body / pieces, piece = body % pieces;
    search(formula, all.made(), plane, sizes.columns * piece / pieces, sizes.columns * (piece + 1) / pieces, ranges,
           most);
  });
  return most;
}

}  // namespace flashmask
