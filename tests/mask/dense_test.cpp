// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <stdexcept>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

constexpr MaskShape shape{.batch = 2, .heads = 3, .rows = 7, .columns = 5};

TEST(FromDense, ReadsBatchHeadsRowsColumns) {
  std::mt19937_64 random(4);
  std::vector<std::uint8_t> scores(210);
  for (std::uint8_t& score : scores) score = static_cast<std::uint8_t>(random() % 3);
  const Mask mask = from_dense(shape, scores);
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t h = 0; h < 3; ++h) {
      expect_visible(
          mask, [&](auto i, auto j) { return scores[static_cast<std::size_t>(((n * 3 + h) * 7 + i) * 5 + j)] != 0; }, n,
          h);
    }
  }
}

TEST(FromDense, KeepsItsOwnCopy) {
  std::vector<std::uint8_t> scores = {1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0};
  const MaskShape small{.batch = 1, .heads = 1, .rows = 6, .columns = 2};
  const Mask mask = from_dense(small, scores);
  const std::vector<std::uint8_t> before = expand(mask);
  scores.assign(scores.size(), 1);
  EXPECT_EQ(expand(mask), before);
}

TEST(FromPredicate, AsksForEveryScore) {
  const auto predicate = [](std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) {
    return (n * 5 + h * 3 + i * 2 + j * j) % 3 != 0;
  };
  const Mask mask = from_predicate(shape, predicate);
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t h = 0; h < 3; ++h) {
      expect_visible(
          mask, [&](auto i, auto j) { return predicate(n, h, i, j); }, n, h);
      EXPECT_EQ(mask.visible(n, h, 3, 4), predicate(n, h, 3, 4));
    }
  }
}

TEST(FromPredicate, IsAskedOnceAScore) {
  std::atomic<std::int64_t> calls = 0;
  const Mask mask = from_predicate({.batch = 1, .heads = 1, .rows = 6, .columns = 4},
                                   [&calls](auto, auto, auto i, auto j) { return ++calls > 0 && j <= i; });
  lower(mask);
  expand(mask);
  EXPECT_EQ(calls, 24);
}

TEST(FromDense, AcceptsNoScoresAtAll) {
  const Mask mask = from_dense({.batch = 0, .heads = 1, .rows = 0, .columns = 3}, {});
  EXPECT_TRUE(expand(mask).empty());
  EXPECT_FALSE(find_misfit(mask));
}

TEST(FromDense, RefusesAnotherNumberOfScores) {
  EXPECT_EQ(refusal([] { from_dense(shape, std::vector<std::uint8_t>(209)); }),
            "from_dense: visible has 209 values but batch x heads x rows x columns is 210; give one value per score");
}

/// Element (batch, head, row, column) of an array that is laid out in any order, with gaps.
template <class Integer>
void expect_strided(DenseType type, const std::array<std::int64_t, 4>& strides, std::int64_t size) {
  std::mt19937_64 random(6);
  std::vector<Integer> scores(static_cast<std::size_t>(size));
  for (Integer& score : scores) score = static_cast<Integer>(random() % 2);
  const Mask mask = from_dense({scores.data(), type, shape, strides});
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t h = 0; h < 3; ++h) {
      expect_visible(
          mask,
          [&](auto i, auto j) {
            return scores[static_cast<std::size_t>(n * strides[0] + h * strides[1] + i * strides[2] +
                                                   j * strides[3])] != 0;
          },
          n, h);
    }
  }
}

TEST(FromDense, ReadsAnyIntegerWithAnyStrides) {
  expect_strided<std::uint8_t>(DenseType::boolean, {105, 35, 5, 1}, 210);
  expect_strided<std::int8_t>(DenseType::i8, {1, 2, 6, 42}, 210);
  expect_strided<std::int16_t>(DenseType::i16, {105, 35, 1, 7}, 210);
  expect_strided<std::int32_t>(DenseType::i32, {0, 0, 20, 3}, 140);  // one matrix for every batch entry and head
  expect_strided<std::int64_t>(DenseType::i64, {300, 100, 13, 2}, 700);
}

TEST(FromDense, NamesTheFirstIntegerThatIsNeither0Nor1) {
  std::vector<std::int32_t> scores(210, 1);
  scores[105 + 35 + 2 * 5 + 3] = -7;
  EXPECT_EQ(refusal([&] {
              from_dense({scores.data(), DenseType::i32, shape, {105, 35, 5, 1}}, serial_executor());
            }),
            "from_dense: the score of batch 1, head 1, row 2, column 3 is -7; give 0 (masked) or 1 (visible)");
  EXPECT_EQ(refusal([] {
              from_dense({nullptr, DenseType::i32, shape, {105, 35, 5, 1}});
            }),
            "from_dense: data is null; give the scores");
}

TEST(FromPacked, IgnoresBitsPastTheLastColumn) {
  const MaskShape small{.batch = 1, .heads = 1, .rows = 2, .columns = 3};
  EXPECT_EQ(expand(from_packed(small, std::vector<std::uint8_t>{0xfd, 0xfa})),
            (std::vector<std::uint8_t>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(
      refusal([&] { from_packed(small, std::vector<std::uint8_t>(3)); }),
      "from_packed: bits has 3 values but batch x heads x rows x ceil(columns / 8) is 2; give one value per byte");
}

TEST(FromPairs, NamesTheFirstPairOutside) {
  EXPECT_EQ(refusal([] {
              from_pairs(4, 5, std::vector<VisiblePair>{{0, 0}, {3, 5}, {9, 9}});
            }),
            "from_pairs: pairs[1] is (row 3, column 5) but the mask has 4 rows and 5 columns; both count from 0");
  EXPECT_EQ(refusal([] {
              from_pairs(4, 5, std::vector<VisiblePair>{{-1, 0}});
            }),
            "from_pairs: pairs[0] is (row -1, column 0) but the mask has 4 rows and 5 columns; both count from 0");
}

TEST(FromCsr, NamesTheFirstOffsetOrColumnThatIsWrong) {
  const auto from = [](std::vector<std::int64_t> offsets, std::vector<std::int64_t> columns) {
    return refusal([&] { from_csr(2, 3, offsets, columns); });
  };
  EXPECT_EQ(from({0, 1}, {0}), "from_csr: offsets has 2 values; give rows + 1, which is 3");
  EXPECT_EQ(from({1, 1, 1}, {0}), "from_csr: offsets[0] is 1; give 0");
  EXPECT_EQ(from({0, 2, 1}, {0, 1}), "from_csr: offsets[2] is 1; give a value from 2 to 2");
  EXPECT_EQ(from({0, 1, 1}, {0, 1}), "from_csr: the last offset is 1 but column_indices has 2 values; give as many");
  EXPECT_EQ(from({0, 1, 2}, {0, 3}), "from_csr: column_indices[1] is 3; give a column from 0 to below 3");
}

TEST(FromPredicate, PassesAnExceptionOn) {
  EXPECT_THROW(from_predicate({.batch = 1, .heads = 1, .rows = 300, .columns = 300},
                              [](auto, auto, auto i, auto j) {
                                if (i == 200 && j == 100) throw std::out_of_range("no such score");
                                return true;
                              }),
               std::out_of_range);
}

TEST(FromPredicate, RefusesAnEmptyFunctionAndNegativeSizes) {
  EXPECT_EQ(refusal([] { from_predicate(shape, nullptr); }),
            "from_predicate: the predicate is empty; give a function of (batch, head, row, column)");
  EXPECT_EQ(refusal([] {
              from_predicate({.batch = 1, .heads = 1, .rows = -1, .columns = 1},
                             [](auto, auto, auto, auto) { return true; });
            }),
            "from_predicate: shape.rows is -1; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
