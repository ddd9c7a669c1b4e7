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

TEST(FromPredicate, IsAskedOnceAScoreWhenTheMaskFits) {
  std::int64_t calls = 0;
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
            "from_dense: visible has 209 values but batch x heads x rows x columns is 210; give one value a score");
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
