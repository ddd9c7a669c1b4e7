// SPDX-License-Identifier: Apache-2.0
#include "mask/formula/formula.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashmask/error.h"
#include "mask/formula/row_groups.h"

namespace flashmask {
namespace {

using Numbers = std::vector<std::int64_t>;
constexpr TokenNumbers kIndex{nullptr, {0, 0, 0}, NumberType::i64};

TokenNumbers of(const Numbers& numbers) { return {numbers.data(), {0, 0, 1}, NumberType::i64}; }
TokenNumbers of(const std::vector<double>& numbers) { return {numbers.data(), {0, 0, 1}, NumberType::f64}; }
TokenNumbers of(const std::vector<float>& numbers) { return {numbers.data(), {0, 0, 1}, NumberType::f32}; }
TokenNumbers of(const std::vector<std::uint8_t>& numbers) { return {numbers.data(), {0, 0, 1}, NumberType::boolean}; }

Condition compare(ConditionKind kind, TokenNumbers rows, TokenNumbers columns) { return {kind, 0, rows, columns}; }

using Visible = std::function<bool(std::int64_t row, std::int64_t column)>;

/// The ranges of rows that are, or are not, visible in each column, by looking at all pairs.
std::vector<std::int32_t> expected_ranges(const MaskShape& shape, bool visible, int slots, const Visible& sees) {
  std::vector<std::int32_t> all;
  for (std::int64_t column = 0; column < shape.columns; ++column) {
    std::vector<std::int32_t> own;
    for (std::int64_t row = 0; row <= shape.rows; ++row) {
      const bool inside = row < shape.rows && sees(row, column) == visible;
      if (inside != (own.size() % 2 == 1)) own.push_back(static_cast<std::int32_t>(row));
    }
    own.resize(static_cast<std::size_t>(2 * slots), static_cast<std::int32_t>(shape.rows));
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

/// Compares the ranges of a formula with those of its pairs.
void expect_ranges(const std::vector<Condition>& conditions, std::int64_t rows, std::int64_t columns,
                   const Visible& sees) {
  for (const bool visible : {true, false}) {
    const Formula formula{conditions, {1, 1, rows, columns}, visible, kMostSlots};
    std::vector<std::int32_t> ranges(static_cast<std::size_t>(columns * 2 * kMostSlots));
    EXPECT_LE(find_ranges(formula, ranges.data(), serial_executor()), kMostSlots);
    EXPECT_EQ(ranges, expected_ranges(formula.shape, visible, kMostSlots, sees));
  }
}

bool holds(ConditionKind kind, auto row, auto column) {
  switch (kind) {
    case ConditionKind::less:
      return row < column;
    case ConditionKind::less_equal:
      return row <= column;
    case ConditionKind::greater:
      return row > column;
    case ConditionKind::greater_equal:
      return row >= column;
    case ConditionKind::equal:
      return row == column;
    default:
      return row != column;
  }
}

constexpr ConditionKind kComparisons[] = {ConditionKind::less,    ConditionKind::less_equal,
                                          ConditionKind::greater, ConditionKind::greater_equal,
                                          ConditionKind::equal,   ConditionKind::unequal};

TEST(Formula, ComparesRowsInAnyOrderWithColumns) {
  std::mt19937_64 random(0);
  for (const std::int64_t size : {1, 2, 3, 31, 32, 33, 40}) {
    Numbers rows, columns;
    for (std::int64_t i = 0; i < size; ++i) rows.push_back(static_cast<std::int64_t>(random() % 5));
    for (std::int64_t i = 0; i < size; ++i) columns.push_back(static_cast<std::int64_t>(random() % 6) - 1);
    for (const ConditionKind kind : kComparisons) {
      expect_ranges({compare(kind, of(rows), of(columns))}, size, size, [&](std::int64_t i, std::int64_t j) {
        return holds(kind, rows[static_cast<std::size_t>(i)], columns[static_cast<std::size_t>(j)]);
      });
      expect_ranges({compare(kind, kIndex, of(columns))}, size, size, [&](std::int64_t i, std::int64_t j) {
        return holds(kind, i, columns[static_cast<std::size_t>(j)]);
      });
    }
  }
}

TEST(Formula, ComparesNumbersAtTheEndsOfTheirType) {
  const Numbers ends{INT64_MAX, 0, INT64_MIN, 3, INT64_MAX, INT64_MIN};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> doubles{0.0, -0.0, kInfinity, -kInfinity, -1.5, std::numeric_limits<double>::denorm_min()};
  const std::vector<float> floats{0.0F, -0.0F, std::numeric_limits<float>::max(), -2.0F, -1.5F, 1e-45F};
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (const ConditionKind kind : kComparisons) {
    expect_ranges({compare(kind, of(ends), of(ends))}, 6, 6,
                  [&](auto i, auto j) { return holds(kind, ends[at(i)], ends[at(j)]); });
    expect_ranges({compare(kind, kIndex, of(ends))}, 6, 6, [&](auto i, auto j) { return holds(kind, i, ends[at(j)]); });
    expect_ranges({compare(kind, of(doubles), of(doubles))}, 6, 6,
                  [&](auto i, auto j) { return holds(kind, doubles[at(i)], doubles[at(j)]); });
    expect_ranges({compare(kind, of(floats), of(doubles))}, 6, 6,
                  [&](auto i, auto j) { return holds(kind, static_cast<double>(floats[at(i)]), doubles[at(j)]); });
  }
}

TEST(Formula, FindsRunsOfOneNumberAmongRowsThatAFactHides) {
  // Rows of number 0 lie in 1,000 runs, of which the fact leaves one.
  Numbers numbers;
  std::vector<std::uint8_t> flags;
  for (std::int64_t i = 0; i < 2000; ++i) numbers.push_back(i % 2 == 0 ? 0 : i);
  for (std::int64_t i = 0; i < 2000; ++i) flags.push_back(i % 2 == 1 || i == 1200 ? 1 : 0);
  const Formula formula{{{ConditionKind::conjunction, 2, {}, {}},
                         compare(ConditionKind::equal, of(numbers), of(numbers)),
                         {ConditionKind::row_fact, 0, of(flags), {}}},
                        {1, 1, 2000, 2000},
                        true,
                        1};
  std::vector<std::int32_t> ranges(4000);
  ASSERT_EQ(find_ranges(formula, ranges.data(), serial_executor()), 1);
  for (std::int32_t column = 0; column < 2000; ++column) {
    const std::int32_t row = column % 2 == 0 ? 1200 : column;
    EXPECT_EQ(ranges[static_cast<std::size_t>(2 * column)], row);
    EXPECT_EQ(ranges[static_cast<std::size_t>(2 * column + 1)], row + 1);
  }
}

TEST(Formula, ReadsBatchEntriesAndHeadsByTheirStrides) {
  const Numbers ids{0, 0, 1, 1, 0, 1, 1, 1};  // [2 entries, 4 rows]
  const Numbers reach{1, 3};                  // [2 heads]
  const TokenNumbers own{ids.data(), {4, 0, 1}, NumberType::i64}, reaches{reach.data(), {0, 1, 0}, NumberType::i64};
  const Formula formula{{{ConditionKind::conjunction, 2, {}, {}},
                         compare(ConditionKind::equal, own, own),
                         compare(ConditionKind::less, kIndex, reaches)},
                        {2, 2, 4, 4},
                        true,
                        2};
  std::vector<std::int32_t> ranges(2 * 2 * 4 * 4);
  ASSERT_EQ(find_ranges(formula, ranges.data(), default_executor()), 1);
  std::vector<std::int32_t> expected;
  for (std::size_t entry = 0; entry < 2; ++entry)
    for (std::size_t head = 0; head < 2; ++head) {
      const auto one = expected_ranges({1, 1, 4, 4}, true, 2, [&](std::int64_t i, std::int64_t j) {
        const auto row = static_cast<std::size_t>(i), column = static_cast<std::size_t>(j);
        return ids[4 * entry + row] == ids[4 * entry + column] && i < reach[head];
      });
      expected.insert(expected.end(), one.begin(), one.end());
    }
  EXPECT_EQ(ranges, expected);
}

TEST(Formula, SaysWhereAColumnHasMoreRangesOrNumbersAreNone) {
  const Numbers parity{0, 1, 0, 1, 0, 1};
  std::vector<std::int32_t> ranges(6 * 4);
  Formula formula{{compare(ConditionKind::equal, of(parity), of(parity))}, {1, 1, 6, 6}, false, 2};
  EXPECT_EQ(find_ranges(formula, ranges.data(), serial_executor()), 3);
  const std::vector<double> numbers{0, 1, std::nan(""), 2, 3, 4};
  const std::vector<double> whole{0, 1, 2, 3, 4, 5};
  for (const auto& [rows, columns] : {std::pair(of(numbers), of(whole)), std::pair(of(whole), of(numbers))}) {
    formula.conditions = {compare(ConditionKind::less, rows, columns)};
    EXPECT_EQ(find_ranges(formula, ranges.data(), serial_executor()), kNotANumber);
  }
}

TEST(Formula, RefusesConditionsThatAreNotOneFormula) {
  const auto refusal = [](std::vector<Condition> conditions) -> std::string {
    std::vector<std::int32_t> ranges(4);
    try {
      find_ranges({std::move(conditions), {1, 1, 1, 1}, true, 2}, ranges.data(), serial_executor());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const Condition leaf = compare(ConditionKind::less, kIndex, kIndex);
  EXPECT_EQ(refusal({}), "find_ranges: the formula has no condition");
  EXPECT_EQ(refusal({leaf, leaf}), "find_ranges: conditions follow the formula's last part");
  EXPECT_EQ(refusal({{ConditionKind::conjunction, 2, {}, {}}, leaf}),
            "find_ranges: the formula ends before the parts of a condition");
  EXPECT_EQ(refusal({{ConditionKind::disjunction, 0, {}, {}}}),
            "find_ranges: a condition has 0 parts; expected 1 or more");
  std::vector<Condition> deep(40, {ConditionKind::conjunction, 1, {}, {}});
  deep.push_back(leaf);
  EXPECT_EQ(refusal(deep), "find_ranges: the formula nests more than 16 levels deep");
}

TEST(RowGroups, FindsTheNextRunWhereverItLies) {
  // Runs of two numbers at random rows of 40,000, which takes four levels.
  std::mt19937_64 random(1);
  constexpr std::int32_t kRows = 40'000;
  std::vector<KeyRange> numbers(kRows);
  for (KeyRange& each : numbers) each.least = each.greatest = static_cast<std::int64_t>(random() % 2);
  std::vector<std::int32_t> begins;
  for (std::int32_t row = 0; row < kRows; row += 1 + static_cast<std::int32_t>(random() % 999)) begins.push_back(row);
  const int levels = RowGroups::levels_of(kRows);
  const std::uint64_t slots = RowGroups::room_for(begins.size());
  const std::uint64_t nodes = RowGroups::room_for(begins.size() * static_cast<std::size_t>(levels));
  std::vector<std::int32_t> slot_memory(slots, RowGroups::kNone);
  std::vector<unsigned long long> node_memory(nodes, 0);
  std::vector<std::uint32_t> child_memory(nodes, 0);
  const RowGroups groups{numbers.data(),
                         slot_memory.data(),
                         node_memory.data(),
                         child_memory.data(),
                         static_cast<unsigned>(slots - 1),
                         static_cast<unsigned>(nodes - 1),
                         levels};
  for (const std::int32_t row : begins) groups.insert(row);
  EXPECT_EQ(levels, 4);
  EXPECT_EQ(groups.slot_of(2), RowGroups::kNone);
  for (const std::int64_t number : {0, 1}) {
    const std::int32_t slot = groups.slot_of(number);
    for (std::int32_t row = 0; row < kRows; row += 7) {
      std::int32_t expected = kRows;
      for (const std::int32_t begin : begins)
        if (begin > row && numbers[static_cast<std::size_t>(begin)].least == number) {
          expected = begin;
          break;
        }
      ASSERT_EQ(groups.next_run(slot, row, kRows), expected);
    }
  }
}

}  // namespace
}  // namespace flashmask
