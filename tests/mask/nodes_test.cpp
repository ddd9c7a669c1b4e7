// SPDX-License-Identifier: Apache-2.0
#include "flashmask/nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/error.h"

namespace flashmask {
namespace {

using Numbers = std::vector<std::int64_t>;

/// Row ranges [token, ends[token]), one per column; a token with ends[token] = token is padding.
Mask mask_of(const Numbers& ends) {
  const auto tokens = std::ssize(ends);
  IntervalMask mask({1, 1, tokens, tokens});
  for (std::int64_t i = 0; i < tokens; ++i)
    mask.set(static_cast<std::size_t>(i), {0, static_cast<std::int32_t>(i)},
             {static_cast<std::int32_t>(ends[static_cast<std::size_t>(i)]), static_cast<std::int32_t>(tokens)});
  return {std::move(mask), "test"};
}

/// Finds predecessors by comparing what rows see; nullopt where some row sees other tokens than its predecessor and
/// itself, or where rows that see a column are not one run from its own on. A row of padding sees what one of the
/// tokens before it sees, or nothing.
std::optional<Numbers> predecessors_by_sets(const Mask& mask) {
  const std::int64_t tokens = mask.shape().rows;
  const auto rows_of = [&](std::int64_t column) {
    Numbers rows;
    for (std::int64_t row = 0; row < tokens; ++row)
      if (mask.visible(0, 0, row, column)) rows.push_back(row);
    return rows;
  };
  const auto is_padding = [&](std::int64_t column) { return rows_of(column).empty(); };
  for (std::int64_t column = 0; column < tokens; ++column) {
    const Numbers rows = rows_of(column);
    if (!rows.empty() && (rows.front() != column || rows.back() - column + 1 != std::ssize(rows))) return std::nullopt;
  }
  std::vector<Numbers> seen(static_cast<std::size_t>(tokens));
  Numbers found(static_cast<std::size_t>(tokens), -1);
  for (std::int64_t row = 0; row < tokens; ++row) {
    Numbers& own = seen[static_cast<std::size_t>(row)];
    for (std::int64_t column = 0; column < tokens; ++column)
      if (mask.visible(0, 0, row, column)) own.push_back(column);
    if (is_padding(row)) {
      if (!own.empty() && (own.back() > row || own != seen[static_cast<std::size_t>(own.back())])) return std::nullopt;
      continue;
    }
    if (own.empty() || own.back() != row) return std::nullopt;
    if (own.size() == 1) continue;
    const std::int64_t before = own[own.size() - 2];
    Numbers expected = seen[static_cast<std::size_t>(before)];
    expected.push_back(row);
    if (own != expected) return std::nullopt;
    found[static_cast<std::size_t>(row)] = before;
  }
  return found;
}

/// Ends of a random tree: nested ranges, with padding between them.
void add_tree(Numbers& ends, std::int64_t begin, std::int64_t end, int depth, std::mt19937& random) {
  const auto upto = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t last = at + 1 + upto(end - at - 1), own = std::min(last, at + 1 + upto(6));
    if (upto(5) == 0) {
      ends[static_cast<std::size_t>(at)] = at;  // padding
      ++at;
      continue;
    }
    for (std::int64_t i = at; i < own; ++i) ends[static_cast<std::size_t>(i)] = last;
    if (depth > 0)
      add_tree(ends, own, last, depth - 1, random);
    else
      for (std::int64_t i = own; i < last; ++i) ends[static_cast<std::size_t>(i)] = i;
    at = last;
  }
}

std::string refusal_of(const Mask& mask) {
  try {
    nodes(mask);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// What the parts of Nodes must say of each other.
void expect_consistent(const Nodes& found) {
  ASSERT_EQ(found.begins.size(), found.levels.size());
  Numbers covered(found.predecessors.size(), 0);
  for (std::size_t n = 0; n < found.begins.size(); ++n) {
    ASSERT_LT(found.begins[n], found.ends[n]);
    if (n > 0) {
      ASSERT_GE(found.begins[n], found.ends[n - 1]);
    }
    const std::int64_t parent = found.parents[n];
    ASSERT_LT(parent, static_cast<std::int64_t>(n));
    ASSERT_EQ(found.levels[n], parent < 0 ? 0 : found.levels[static_cast<std::size_t>(parent)] + 1);
    ASSERT_EQ(found.predecessors[static_cast<std::size_t>(found.begins[n])],
              parent < 0 ? -1 : found.ends[static_cast<std::size_t>(parent)] - 1);
    for (std::int64_t i = found.begins[n]; i < found.ends[n]; ++i) {
      covered[static_cast<std::size_t>(i)] = 1;
      if (i > found.begins[n]) {
        ASSERT_EQ(found.predecessors[static_cast<std::size_t>(i)], i - 1);
      }
    }
  }
  for (std::size_t i = 0; i < covered.size(); ++i)
    if (covered[i] == 0) {
      ASSERT_EQ(found.predecessors[i], -1);
    }
}

TEST(Nodes, OfRandomTreesAreThoseOfTheSetsThatRowsSee) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    Numbers ends(1 + random() % 60);
    add_tree(ends, 0, std::ssize(ends), static_cast<int>(random() % 4), random);
    const Mask mask = mask_of(ends);
    const Nodes found = nodes(mask);
    const std::optional<Numbers> expected = predecessors_by_sets(mask);
    ASSERT_TRUE(expected.has_value());
    ASSERT_EQ(found.predecessors, *expected) << testing::PrintToString(ends);
    expect_consistent(found);
  }
}

TEST(Nodes, AreRefusedWhereAndOnlyWhereRowsSeeOtherSets) {
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto tokens = static_cast<std::int64_t>(2 + random() % 7);
    IntervalMask intervals({1, 1, tokens, tokens});
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto number = [&] { return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(tokens + 1)); };
      const auto own = static_cast<std::int32_t>(random() % 12 == 0 ? number() : i);
      intervals.set(
          static_cast<std::size_t>(i), {0, own},
          random() % 12 == 0 ? Interval{number(), number()} : Interval{number(), static_cast<std::int32_t>(tokens)});
    }
    const Mask mask(std::move(intervals), "test");
    const std::optional<Numbers> expected = predecessors_by_sets(mask);
    const std::string message = refusal_of(mask);
    ASSERT_EQ(expected.has_value(), message.empty()) << message;
    if (expected) {
      ASSERT_EQ(nodes(mask).predecessors, *expected);
    }
    refused += message.empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(Nodes, OfDocumentsAreTheDocuments) {
  const Nodes found = nodes(masks::causal_document({3, 1, 4}, 10));
  EXPECT_EQ(found.begins, (Numbers{0, 3, 4}));
  EXPECT_EQ(found.ends, (Numbers{3, 4, 8}));
  EXPECT_EQ(found.parents, (Numbers{-1, -1, -1}));
  EXPECT_EQ(found.levels, (Numbers{0, 0, 0}));
}

TEST(Nodes, ForkWhereAnswersShareAPrompt) {
  const Nodes found = nodes(mask_of({7, 7, 4, 4, 6, 6, 7, 9, 9}));
  EXPECT_EQ(found.begins, (Numbers{0, 2, 4, 6, 7}));
  EXPECT_EQ(found.ends, (Numbers{2, 4, 6, 7, 9}));
  EXPECT_EQ(found.parents, (Numbers{-1, 0, 0, 0, -1}));
  EXPECT_EQ(found.levels, (Numbers{0, 1, 1, 1, 0}));
  EXPECT_EQ(found.predecessors, (Numbers{-1, 0, 1, 2, 1, 4, 1, -1, 7}));
}

TEST(Nodes, NumberTheTokensOfABatchOneAfterTheOther) {
  IntervalMask mask({2, 2, 4, 4});
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 4; ++i)
        mask.set(mask.index(b, h, i), {0, static_cast<std::int32_t>(i)}, {i < 2 && b == 0 ? 2 : 4, 4});
  const Nodes found = nodes(Mask(std::move(mask), "two entries"));
  EXPECT_EQ(found.begins, (Numbers{0, 2, 4}));
  EXPECT_EQ(found.predecessors, (Numbers{-1, 0, -1, 2, -1, 4, 5, 6}));
}

TEST(Nodes, SayWhichColumnDoesNotFit) {
  EXPECT_NE(refusal_of(masks::sliding_window(8, 8, 2)).find("column 1 is seen by row 2, which does not see column 0"),
            std::string::npos)
      << refusal_of(masks::sliding_window(8, 8, 2));
  EXPECT_NE(refusal_of(masks::document({4}, 4)).find("column 1 is seen by row 0, which comes before it"),
            std::string::npos);
  EXPECT_NE(refusal_of(masks::causal(4, 8)).find("4 rows and 8 columns"), std::string::npos);
  IntervalMask heads({1, 2, 4, 4});
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int32_t i = 0; i < 4; ++i) heads.set(heads.index(0, h, i), {0, i}, {h == 1 && i == 0 ? 2 : 4, 4});
  EXPECT_NE(refusal_of(Mask(std::move(heads), "test")).find("column 0 of mask head 1"), std::string::npos);
  EXPECT_NE(refusal_of(Mask(IntervalMask({1, 0, 5, 5}), "test")).find("0 heads"), std::string::npos);
}

TEST(Nodes, OfNoTokensAreNone) { EXPECT_EQ(nodes(masks::causal(0, 0)), Nodes{}); }

}  // namespace
}  // namespace flashmask
