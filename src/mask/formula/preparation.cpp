// SPDX-License-Identifier: Apache-2.0
#include "mask/formula/preparation.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "base/checks.h"
#include "flashmask/error.h"

namespace flashmask {
namespace {

constexpr std::int16_t kNone = -1;

bool joins(ConditionKind kind) { return kind <= ConditionKind::disjunction; }

/// Returns the place of a value in a list, to which it is added unless it is there.
template <class T, class Same>
std::int16_t place_in(std::vector<T>& list, const T& value, const Same& same) {
  const auto place = std::ranges::find_if(list, same) - list.begin();
  if (place == std::ssize(list)) list.push_back(value);
  return static_cast<std::int16_t>(place);
}

class Preparer {
 public:
  explicit Preparer(const Formula& formula) : formula_(formula) {
    check_shape("find_ranges", formula.shape);
    if (formula.conditions.empty()) refuse("find_ranges: the formula has no condition");
    if (formula.conditions.size() > std::numeric_limits<std::int16_t>::max())
      refuse("find_ranges: the formula has " + grouped(std::ssize(formula.conditions)) + " conditions");
    made_.conditions.resize(formula.conditions.size());
    if (take(0, 0) != formula.conditions.size()) refuse("find_ranges: conditions follow the formula's last part");
    const MaskShape& shape = formula.shape;
    const std::uint32_t places = std::bit_ceil(static_cast<std::uint32_t>(std::max<std::int64_t>(shape.rows, 1)));
    made_.sizes = {.rows = static_cast<std::int32_t>(shape.rows),
                   .columns = static_cast<std::int32_t>(shape.columns),
                   .heads = static_cast<std::int32_t>(shape.heads),
                   .planes = static_cast<std::int32_t>(shape.batch * shape.heads),
                   .places = static_cast<std::int32_t>(places),
                   .levels = RowGroups::levels_of(shape.rows)};
  }

  Preparation take_result() { return std::move(made_); }

 private:
  /// Prepares a condition and its parts; returns the one after them.
  std::size_t take(std::size_t at, int depth) {
    if (at >= formula_.conditions.size()) refuse("find_ranges: the formula ends before the parts of a condition");
    const Condition& given = formula_.conditions[at];
    PreparedCondition made{given.kind, 0, 0, kNone, kNone, given.columns};
    std::size_t end = at + 1;
    if (joins(given.kind)) {
      if (given.parts < 1)
        refuse("find_ranges: a condition has " + std::to_string(given.parts) + " parts; expected 1 or more");
      made.parts = static_cast<std::int16_t>(given.parts);
      if (depth == kMostDepth) {
        throw Error(Status::unsupported,
                    "find_ranges: the formula nests more than " + std::to_string(kMostDepth) + " levels deep");
      }
      for (int part = 0; part < given.parts; ++part) end = take(end, depth + 1);
    } else if (given.kind != ConditionKind::column_fact && given.rows.data != nullptr) {
      made.numbers = numbers_of(given.rows);
    } else if (given.kind == ConditionKind::row_fact) {
      refuse("find_ranges: a fact of rows has no booleans");
    }
    made.end = static_cast<std::int16_t>(end);
    made_.conditions[at] = made;
    if (given.kind == ConditionKind::conjunction) take_groups_of_parts(at);
    if (given.kind == ConditionKind::unequal || (at == 0 && given.kind == ConditionKind::equal)) take_groups(at, {});
    if (given.kind == ConditionKind::disjunction) take_groups_of_equalities(at);
    return end;
  }

  std::int16_t numbers_of(const TokenNumbers& given) {
    return place_in(made_.numbers, {given, nullptr}, [&](const RowNumbers& each) { return each.given == given; });
  }

  template <class Use>
  void for_parts(std::size_t at, const Use& use) {
    for (std::size_t part = at + 1; part < static_cast<std::size_t>(made_.conditions[at].end);
         part = static_cast<std::size_t>(made_.conditions[part].end))
      use(part);
  }

  /// Beside facts of rows, rows that these hide need to be in no group: they are searched for together.
  void take_groups_of_parts(std::size_t at) {
    std::vector<std::int32_t> keep;
    for_parts(at, [&](std::size_t part) {
      const PreparedCondition& fact = made_.conditions[part];
      if (fact.kind == ConditionKind::row_fact && fact.numbers != kNone) keep.push_back(fact.numbers);
    });
    for_parts(at, [&](std::size_t part) {
      if (made_.conditions[part].kind == ConditionKind::equal) take_groups(part, keep);
    });
  }
  void take_groups_of_equalities(std::size_t at) {
    for_parts(at, [&](std::size_t part) {
      if (made_.conditions[part].kind == ConditionKind::equal) take_groups(part, {});
    });
  }

  void take_groups(std::size_t at, const std::vector<std::int32_t>& keep) {
    PreparedCondition& leaf = made_.conditions[at];
    if (leaf.numbers == kNone) return;
    GroupTables tables{};
    tables.numbers = leaf.numbers;
    for (std::size_t i = 0; i < GroupTables::kMostKept; ++i) tables.keep[i] = i < keep.size() ? keep[i] : kNone;
    leaf.groups = place_in(made_.groups, tables, [&](const GroupTables& each) {
      return each.numbers == tables.numbers && std::ranges::equal(each.keep, tables.keep);
    });
  }

  const Formula& formula_;
  Preparation made_{};
};

}  // namespace

Preparation prepared(const Formula& formula) { return Preparer(formula).take_result(); }

}  // namespace flashmask
