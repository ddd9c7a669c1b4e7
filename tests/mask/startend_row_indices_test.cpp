// SPDX-License-Identifier: Apache-2.0
#include "flashmask/startend_row_indices.h"

#include <array>
#include <limits>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::expect_visible;
using testing::refusal;

using Values = std::vector<std::int32_t>;

/// Misordered, overlapping, negative and beyond the rows.
Values random_values(std::mt19937_64& random, const MaskShape& shape, int vectors) {
  Values values(static_cast<std::size_t>(shape.batch * shape.heads * shape.columns * vectors));
  for (std::int32_t& value : values) {
    value = static_cast<std::int32_t>(testing::draw(random, -shape.rows / 2 - 2, shape.rows * 3 / 2 + 2));
  }
  return values;
}

/// The table of the format, row by row: is row r of column j masked by the vectors x?
bool masked(const std::int32_t* x, int vectors, bool causal, std::int64_t r, std::int64_t j, std::int64_t past) {
  if (causal && j > r + past) return true;
  if (causal) return r >= x[0] && (vectors == 1 || r < x[1]);
  if (vectors == 2) return r >= x[0] || r < x[1];
  return (r >= x[0] && r < x[1]) || (r >= x[2] && r < x[3]);
}

void expect_table(const Mask& mask, const Values& values, int vectors, bool causal) {
  const MaskShape& shape = mask.shape();
  for (std::int64_t n = 0; n < shape.batch; ++n) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const std::int64_t first = (n * shape.heads + h) * shape.columns;
      expect_visible(
          mask,
          [&](auto i, auto j) {
            return !masked(&values[static_cast<std::size_t>((first + j) * vectors)], vectors, causal, i, j,
                           shape.columns - shape.rows);
          },
          n, h);
    }
  }
}

struct Format {
  int vectors;
  bool causal;
};
constexpr std::array<Format, 4> formats = {{{1, true}, {2, true}, {2, false}, {4, false}}};

TEST(FromStartEndRowIndices, MasksWhatTheTableSays) {
  std::mt19937_64 random(6);
  for (const auto& [vectors, causal] : formats) {
    for (const auto& [rows, columns] : testing::sizes) {
      const MaskShape shape{.batch = 2, .heads = 3, .rows = rows, .columns = columns};
      const Values values = random_values(random, shape, vectors);
      expect_table(from_startend_row_indices(values, shape, vectors, causal), values, vectors, causal);
    }
  }
}

TEST(FromStartEndRowIndices, ClipsTheExtremesOf32Bits) {
  const std::int32_t low = std::numeric_limits<std::int32_t>::min();
  const std::int32_t high = std::numeric_limits<std::int32_t>::max();
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 5, .columns = 3};
  const Values values = {low, high, high, low, low, 2, 4, high, high, low, 1, 2};
  expect_table(from_startend_row_indices(values, shape, 4, false), values, 4, false);
}

TEST(ToStartEndRowIndices, IsReadBackAsTheSameMask) {
  std::mt19937_64 random(7);
  for (const auto& [vectors, causal] : formats) {
    for (const auto& [rows, columns] : testing::sizes) {
      const MaskShape shape{.batch = 2, .heads = 2, .rows = rows, .columns = columns};
      const Mask mask = from_startend_row_indices(random_values(random, shape, vectors), shape, vectors, causal);
      const StartEndRowIndices written = to_startend_row_indices(lower(mask).intervals());
      EXPECT_EQ(written.shape, shape);
      const Mask again = from_startend_row_indices(written.values, shape, written.vectors, written.causal);
      EXPECT_EQ(expand(again), expand(mask)) << vectors << " vectors, " << rows << " x " << columns;
    }
  }
}

Format format_of(const Mask& mask) {
  const StartEndRowIndices indices = to_startend_row_indices(lower(mask).intervals());
  return {indices.vectors, indices.causal};
}

TEST(ToStartEndRowIndices, NeverWritesMoreThanWasRead) {
  std::mt19937_64 random(8);
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 31, .columns = 40};
  for (const auto& [vectors, causal] : formats) {
    const Mask mask = from_startend_row_indices(random_values(random, shape, vectors), shape, vectors, causal);
    const Format written = format_of(mask);
    EXPECT_EQ(written.vectors, vectors);
    EXPECT_EQ(written.causal, causal);
  }
}

TEST(ToStartEndRowIndices, FindsTheVectorsOfTheFamilies) {
  const std::vector<std::int64_t> documents = {4, 3, 3};
  const auto written = [](const Mask& mask) { return to_startend_row_indices(lower(mask).intervals()).values; };
  EXPECT_EQ(written(masks::causal(10, 10)), Values(10, 10));
  EXPECT_EQ(written(masks::sliding_window(10, 10, 3)), (Values{3, 4, 5, 6, 7, 8, 9, 10, 10, 10}));
  EXPECT_EQ(written(masks::causal_document(documents, 10)), (Values{4, 4, 4, 4, 7, 7, 7, 10, 10, 10}));
  EXPECT_EQ(written(masks::document(documents, 10)),
            (Values{4, 0, 4, 0, 4, 0, 4, 0, 7, 4, 7, 4, 7, 4, 10, 7, 10, 7, 10, 7}));
  EXPECT_EQ(written(masks::causal_blockwise(documents, 10)),
            (Values{4, 7, 4, 7, 4, 7, 4, 7, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}));
}

TEST(ToStartEndRowIndices, FindsTheCausalFlagForSizesThatDiffer) {
  for (const auto& [rows, columns] : {std::pair{7, 12}, {12, 7}}) {
    EXPECT_TRUE(format_of(masks::causal(rows, columns)).causal);
    EXPECT_EQ(format_of(masks::sliding_window(rows, columns, 3)).vectors, 1);
    EXPECT_FALSE(format_of(masks::window(rows, columns, 2, 1)).causal);
    EXPECT_EQ(format_of(masks::window(rows, columns, 2, 1)).vectors, 2);
  }
}

TEST(FromStartEndRowIndices, RefusesAnotherNumberOfVectors) {
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 4, .columns = 4};
  EXPECT_EQ(refusal([&] { from_startend_row_indices(Values(16), shape, 4, true); }),
            "from_startend_row_indices: vectors is 4; give 1 (LTS) or 2 (LTS, LTE) with causal");
  EXPECT_EQ(refusal([&] { from_startend_row_indices(Values(4), shape, 1, false); }),
            "from_startend_row_indices: vectors is 1; give 2 (LTS, UTE) or 4 (LTS, LTE, UTS, UTE) without causal");
  EXPECT_EQ(refusal([&] { from_startend_row_indices({}, shape, 0, false); }),
            "from_startend_row_indices: vectors is 0; give 2 (LTS, UTE) or 4 (LTS, LTE, UTS, UTE) without causal");
}

TEST(FromStartEndRowIndices, RefusesAnotherNumberOfValues) {
  const MaskShape shape{.batch = 2, .heads = 3, .rows = 4, .columns = 5};
  EXPECT_EQ(refusal([&] { from_startend_row_indices(Values(59), shape, 2, false); }),
            "from_startend_row_indices: values has 59 values but batch x heads x columns x vectors is 60; give int32 "
            "[batch, heads, columns, vectors]");
}

TEST(FromStartEndRowIndices, RefusesNegativeSizes) {
  const MaskShape shape{.batch = 1, .heads = 1, .rows = 4, .columns = -4};
  EXPECT_EQ(refusal([&] { from_startend_row_indices({}, shape, 1, true); }),
            "from_startend_row_indices: shape.columns is -4; give a size from 0 to 2,147,483,647 (2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
