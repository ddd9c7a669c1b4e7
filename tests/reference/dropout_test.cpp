// SPDX-License-Identifier: Apache-2.0
#include "flashmask/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "flashmask/error.h"
#include "flashmask/reference.h"

namespace flashmask {
namespace {

Problem problem(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns, double dropout) {
  Problem p;
  p.batch = batch;
  p.query_heads = p.kv_heads = heads;
  p.query_length = rows;
  p.key_length = columns;
  p.head_dim = p.value_dim = 4;
  p.dropout = dropout;
  return p;
}

TEST(Dropout, ComparesThePublishedPhiloxNumbersWithTheThreshold) {
  // Known answer of Philox 4x32-7 for counter 0 and key 0: 5f6fb709 0d893f64 4f121f81 4f730a48; its 16-bit numbers in
  // order are b709 5f6f 3f64 0d89 1f81 4f12 0a48 4f73.
  const std::vector<std::uint32_t> numbers = {0xb709, 0x5f6f, 0x3f64, 0x0d89, 0x1f81, 0x4f12, 0x0a48, 0x4f73};
  for (const std::uint32_t threshold : {0x0a48u, 0x0a49u, 0x3f65u, 0x5f6fu, 0xb709u, 0xb70au}) {
    const auto kept = expand_dropout(problem(1, 1, 1, 8, threshold / 65536.0), {.seed = 0, .offset = 0});
    for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(kept[c] != 0, numbers[c] >= threshold) << threshold << " " << c;
  }
}

TEST(Dropout, KeepsWhatItShouldOnAverageInEveryRowAndColumn) {
  const double p = 0.3;
  const std::int64_t n = 400;
  const auto kept = expand_dropout(problem(1, 1, n, n, p), {.seed = 42, .offset = 3});
  // Five standard deviations of a binomial count; the seed is fixed.
  const double slack = 5 * std::sqrt(n * p * (1 - p));
  for (std::int64_t i = 0; i < n; ++i) {
    double in_row = 0, in_column = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      in_row += kept[static_cast<std::size_t>(i * n + j)];
      in_column += kept[static_cast<std::size_t>(j * n + i)];
    }
    EXPECT_NEAR(in_row, n * (1 - p), slack);
    EXPECT_NEAR(in_column, n * (1 - p), slack);
  }
}

/// Correlation of two keep masks of probability 1/2.
double correlation(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b, std::size_t shift) {
  double sum = 0;
  for (std::size_t i = 0; i + shift < a.size(); ++i) sum += (a[i] - 0.5) * (b[i + shift] - 0.5) * 4;
  return sum / static_cast<double>(a.size() - shift);
}

TEST(Dropout, IsIndependentOfNeighboursHeadsSeedsAndOffsets) {
  const Problem p = problem(1, 1, 300, 320, 0.5);
  const auto base = expand_dropout(p, {.seed = 7, .offset = 1});
  const double slack = 5 / std::sqrt(300.0 * 320.0);
  for (const std::size_t shift : {1UL, 2UL, 7UL, 8UL, 320UL, 321UL})
    EXPECT_NEAR(correlation(base, base, shift), 0, slack);
  EXPECT_NEAR(correlation(base, expand_dropout(p, {.seed = 8, .offset = 1}), 0), 0, slack);
  EXPECT_NEAR(correlation(base, expand_dropout(p, {.seed = 7 | std::uint64_t{1} << 40, .offset = 1}), 0), 0, slack);
  EXPECT_NEAR(correlation(base, expand_dropout(p, {.seed = 7, .offset = 2}), 0), 0, slack);
  const auto heads = expand_dropout(problem(1, 2, 300, 320, 0.5), {.seed = 7, .offset = 1});
  const auto second = heads.begin() + 300 * 320;
  EXPECT_EQ(std::vector<std::uint8_t>(heads.begin(), second), base);
  EXPECT_NEAR(correlation(base, {second, heads.end()}, 0), 0, slack);
}

TEST(Dropout, CountsHeadsThroughTheBatch) {
  const auto batch = expand_dropout(problem(2, 3, 5, 9, 0.5), {.seed = 1, .offset = 0});
  const auto heads = expand_dropout(problem(1, 6, 5, 9, 0.5), {.seed = 1, .offset = 0});
  EXPECT_EQ(batch, heads);
}

TEST(Dropout, OfZeroKeepsAllAndScalesByOne) {
  const auto kept = expand_dropout(problem(1, 2, 33, 65, 0), {.seed = 5, .offset = 9});
  EXPECT_EQ(std::accumulate(kept.begin(), kept.end(), 0), 2 * 33 * 65);
  EXPECT_EQ(dropout_scale(0), 1.0);
  EXPECT_EQ(dropout_scale(0.5), 2.0);
}

TEST(Dropout, RefusesAProbabilityOutsideItsRange) {
  for (const double p : {-0.1, 1.0, 1.5, 0.9999999, std::nan("")}) {
    EXPECT_THROW(expand_dropout(problem(1, 1, 2, 2, p), {}), Error) << p;
  }
}

TEST(Dropout, RefusesAnOffsetThatItsCountersDoNotHold) {
  const DropoutState state{.seed = 0, .offset = std::uint64_t{1} << 32};
  EXPECT_THROW(expand_dropout(problem(1, 1, 2, 2, 0.5), state), Error);
  EXPECT_THROW(expand_dropout(problem(1, 1, 2, 2, 0.5), state, 0, 0, 0), Error);
  EXPECT_NO_THROW(expand_dropout(problem(1, 1, 2, 2, 0), state));
}

TEST(Dropout, FactorsScaleWhatIsKept) {
  const Problem p = problem(1, 2, 3, 17, 0.25);
  const DropoutState state{.seed = 4, .offset = 1};
  const std::vector<std::uint8_t> kept = expand_dropout(p, state);
  const std::vector<double> factors = dropout_factors(p, state);
  ASSERT_EQ(factors.size(), kept.size());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(factors[i], kept[i] != 0 ? 4.0 / 3 : 0);
  EXPECT_TRUE(dropout_factors(problem(1, 2, 3, 17, 0), state).empty());
}

TEST(Dropout, ARowIsARowOfTheWhole) {
  const Problem p = problem(2, 4, 5, 19, 0.4);
  const DropoutState state{.seed = 11, .offset = 3};
  const std::vector<std::uint8_t> whole = expand_dropout(p, state);
  for (std::int64_t i = 0; i < 2 * 4 * 5; ++i) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(i * 19);
    EXPECT_EQ(expand_dropout(p, state, i / 20, i / 5 % 4, i % 5), std::vector<std::uint8_t>(begin, begin + 19));
  }
  EXPECT_THROW(expand_dropout(p, state, 2, 0, 0), Error);
  EXPECT_THROW(expand_dropout(p, state, 0, 4, 0), Error);
  EXPECT_THROW(expand_dropout(p, state, 0, 0, -1), Error);
}

/// A part of a larger problem: heads 2 and 3 of 5, two runs of rows, of which the last ends with the sequence, and
/// columns in three runs.
struct Part {
  Problem whole = problem(2, 5, 61, 70, 0.4), part = problem(2, 2, 29, 38, 0.4);
  DropoutPlace place{.first_head = 2, .heads = 5, .row_eights = {1, 2, 6, 7}, .column_eights = {0, 4, 5, 7, 8}};

  static std::int64_t of_whole(const std::vector<std::int32_t>& eights, std::int64_t i) {
    return eights[static_cast<std::size_t>(i / 8)] * 8 + i % 8;
  }
  /// Where a decision of the part lies among those of the whole.
  std::size_t place_of(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
    const std::int64_t heads = batch * whole.query_heads + place.first_head + head;
    return static_cast<std::size_t>((heads * whole.query_length + of_whole(place.row_eights, row)) * whole.key_length +
                                    of_whole(place.column_eights, column));
  }
};

TEST(DropoutPlace, GivesAPartTheDecisionsOfTheWhole) {
  const Part given;
  const DropoutState state{.seed = 11, .offset = 3};
  const std::vector<std::int32_t> place = pack(given.place, given.part);
  const auto whole = expand_dropout(given.whole, state), part = expand_dropout(given.part, state, place);
  std::size_t at = 0;
  for (std::int64_t batch = 0; batch < 2; ++batch)
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t row = 0; row < 29; ++row) {
        const auto of_row = expand_dropout(given.part, state, batch, head, row, place);
        for (std::int64_t column = 0; column < 38; ++column, ++at) {
          ASSERT_EQ(part[at], whole[given.place_of(batch, head, row, column)]) << row << ", " << column;
          ASSERT_EQ(of_row[static_cast<std::size_t>(column)], part[at]);
        }
      }
}

TEST(DropoutPlace, OfNothingIsTheProblemItself) {
  const Part given;
  EXPECT_EQ(expand_dropout(given.whole, {.seed = 1}, pack({}, given.whole)), expand_dropout(given.whole, {.seed = 1}));
}

void expect_refused(const DropoutPlace& place, const std::string& why) {
  try {
    pack(place, Part().part);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    EXPECT_EQ(std::string(error.what()), "pack: the dropout place has " + why);
  }
}

TEST(DropoutPlace, RefusesWhatDoesNotFitTheProblem) {
  expect_refused({.first_head = 4, .heads = 5}, "heads from 4 on of 5; expected the problem's 2 among them");
  expect_refused({.first_head = -1, .heads = 5}, "heads from -1 on of 5; expected the problem's 2 among them");
  expect_refused({.row_eights = {0, 1, 2}}, "3 numbers in row_eights; expected 4, one for every eight of 29");
  expect_refused({.column_eights = {0, 1, -2, 3, 4}}, "-2 in column_eights; expected numbers from 0 on");
}

TEST(DropoutPlace, BreaksOffBetweenTilesOfAGpu) {
  Problem p = problem(1, 1, 800, 8, 0.5);
  DropoutPlace place;
  for (std::int32_t i = 0; i < 100; ++i) place.row_eights.push_back(i + i / 48 * 5);
  p.device = {DeviceType::cuda, 0};
  EXPECT_NO_THROW(pack(place, p));  // tiles of 64 dims divide 384 rows
  p.head_dim = p.value_dim = 128;
  EXPECT_NO_THROW(pack(place, p));
  place.row_eights[20] = 21;
  EXPECT_THROW(pack(place, p), Error);
  p.device = {DeviceType::cpu, 0};
  EXPECT_NO_THROW(pack(place, p));
}

TEST(DropoutPlace, RefusesThatOfAnotherProblem) {
  const Part given;
  const std::vector<std::int32_t> place = pack(given.place, given.part);
  EXPECT_THROW(expand_dropout(given.whole, {}, place), Error);
  EXPECT_THROW(expand_dropout(given.whole, {}, 0, 0, 0, place), Error);
  EXPECT_THROW(dropout_factors(given.whole, {}, place), Error);
}

}  // namespace
}  // namespace flashmask
