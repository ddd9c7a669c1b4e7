// SPDX-License-Identifier: Apache-2.0
#include "flashmask/slice.h"

#include <algorithm>

#include "flashmask/block_map.h"
#include "flashmask/builders.h"
#include "flashmask/startend_row_indices.h"
#include "kit/random_numbers.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using testing::draw;
using testing::expect_visible;
using testing::refusal;

using Spans = std::vector<Span>;

/// Tokens in the order in which spans hold them.
std::vector<std::int64_t> tokens_of(const Spans& spans) {
  std::vector<std::int64_t> tokens;
  for (const Span& span : spans) {
    for (std::int64_t token = span.begin; token < span.end; ++token) tokens.push_back(token);
  }
  return tokens;
}

/// The definition: score (i, j) of a slice is that of the i-th chosen row and the j-th chosen column.
void expect_slice(const Mask& mask, const Spans& rows, const Spans& columns) {
  const Mask sliced = slice(mask, rows, columns);
  const std::vector<std::int64_t> row = tokens_of(rows), column = tokens_of(columns);
  const MaskShape& from = mask.shape();
  ASSERT_EQ(sliced.shape(), (MaskShape{from.batch, from.heads, std::ssize(row), std::ssize(column)}));
  const std::vector<std::uint8_t> scores = expand(mask);
  for (std::int64_t n = 0; n < from.batch; ++n) {
    for (std::int64_t h = 0; h < from.heads; ++h) {
      const std::int64_t first_row = (n * from.heads + h) * from.rows;
      expect_visible(
          sliced,
          [&](auto i, auto j) {
            const std::int64_t r = first_row + row[static_cast<std::size_t>(i)];
            return scores[static_cast<std::size_t>(r * from.columns + column[static_cast<std::size_t>(j)])] != 0;
          },
          n, h);
    }
  }
}

/// Ascending, disjoint spans of whole blocks, some of them empty; the last may end with the sequence.
Spans random_spans(std::mt19937_64& random, std::int64_t tokens, std::int64_t block = 1) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t i = 2 * draw(random, 0, 4); i > 0; --i)
    bounds.push_back(std::min(draw(random, 0, (tokens + block - 1) / block) * block, tokens));
  std::ranges::sort(bounds);
  Spans spans;
  for (std::size_t i = 0; i < bounds.size(); i += 2) spans.push_back({bounds[i], bounds[i + 1]});
  return spans;
}

Spans shuffled(std::mt19937_64& random, Spans spans) {
  std::shuffle(spans.begin(), spans.end(), random);
  return spans;
}

Mask random_intervals(std::mt19937_64& random, const MaskShape& shape) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.batch * shape.heads * shape.columns * 4));
  for (std::size_t i = 0; i < values.size(); i += 2) {
    values[i] = static_cast<std::int32_t>(draw(random, -2, shape.rows + 2));
    values[i + 1] = static_cast<std::int32_t>(values[i] + draw(random, -1, shape.rows / 3));
  }
  return from_startend_row_indices(values, shape, 4, false);
}

/// Bits with cells of every kind: each block of scores is all masked, all visible, or noise.
Mask random_bits(std::mt19937_64& random, const MaskShape& shape) {
  const std::int64_t block = draw(random, 1, 90);
  const std::uint64_t seed = random();
  return from_predicate(shape, [=](std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) {
    const auto mix = [&](std::int64_t a, std::int64_t b) {
      return check::RandomNumbers(seed + static_cast<std::uint64_t>(((n * 3 + h) * 1009 + a) * 1013 + b)).next() >> 32;
    };
    const std::uint64_t kind = mix(i / block, j / block) % 3;
    return kind == 2 ? mix(i + 5000, j) % 2 != 0 : kind == 1;
  });
}

BlockMap random_blocks(std::mt19937_64& random, const MaskShape& shape, std::int64_t block) {
  const auto blocks = [&](std::int64_t tokens) { return (tokens + block - 1) / block; };
  std::vector<std::uint8_t> keep(
      static_cast<std::size_t>(shape.batch * shape.heads * blocks(shape.rows) * blocks(shape.columns)));
  for (std::uint8_t& one : keep) one = random() % 2 != 0;
  return {shape, block, keep};
}

MaskShape random_shape(std::mt19937_64& random, std::int64_t most) {
  return {draw(random, 1, 2), draw(random, 1, 2), draw(random, 0, most), draw(random, 0, most)};
}

TEST(Slice, OfIntervalsIsIntervals) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const MaskShape shape = random_shape(random, 60);
    const Mask mask = random_intervals(random, shape);
    const Spans rows = random_spans(random, shape.rows), columns = random_spans(random, shape.columns);
    expect_slice(mask, rows, shuffled(random, columns));
    EXPECT_EQ(slice(mask, rows, columns).lowered().form(), MaskForm::intervals);
  }
}

TEST(Slice, OfBitsCutsThroughCells) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 40; ++trial) {
    const MaskShape shape = random_shape(random, 200);
    const Mask mask = random_bits(random, shape);
    expect_slice(mask, random_spans(random, shape.rows), shuffled(random, random_spans(random, shape.columns)));
  }
}

TEST(Slice, OfWholeBlocksKeepsTheBlockMapBesideIntervals) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const MaskShape shape{1, draw(random, 1, 2), draw(random, 1, 700), draw(random, 1, 700)};
    const Mask mask = random_intervals(random, shape) & random_blocks(random, shape, 128);
    const Spans rows = random_spans(random, shape.rows, 128), columns = random_spans(random, shape.columns, 128);
    expect_slice(mask, rows, columns);
    const Mask sliced = slice(mask, rows, columns);
    EXPECT_EQ(sliced.lowered().form(), MaskForm::intervals);
    EXPECT_EQ(sliced.lowered().blocks() != nullptr, mask.lowered().blocks() != nullptr);
  }
}

TEST(Slice, CutsThroughBlocksByBits) {
  std::mt19937_64 random(4);
  for (const std::int64_t block : {16, 128}) {
    for (int trial = 0; trial < 10; ++trial) {
      const MaskShape shape{1, 1, draw(random, 1, 400), draw(random, 1, 400)};
      const Mask mask = random_intervals(random, shape) & random_blocks(random, shape, block);
      expect_slice(mask, random_spans(random, shape.rows), shuffled(random, random_spans(random, shape.columns)));
    }
  }
}

TEST(Slice, PutsTheRaggedLastBlockOnlyLast) {
  std::mt19937_64 random(5);
  const MaskShape shape{1, 1, 300, 300};
  const Mask mask = random_intervals(random, shape) & random_blocks(random, shape, 128);
  expect_slice(mask, {{128, 300}}, {{256, 300}, {0, 128}});
  expect_slice(mask, {{0, 128}, {256, 300}}, {{128, 256}, {256, 300}});
}

TEST(Slice, OfEverythingIsTheMask) {
  std::mt19937_64 random(6);
  const MaskShape shape{2, 2, 150, 130};
  for (const Mask& mask : {random_intervals(random, shape), random_bits(random, shape)}) {
    const Mask whole = slice(mask, Spans{{0, 70}, {70, 150}}, Spans{{0, 130}});
    if (mask.lowered().form() == MaskForm::bits) {
      EXPECT_EQ(whole.lowered().bits(), mask.lowered().bits());
    } else {
      EXPECT_EQ(whole.lowered().intervals(), mask.lowered().intervals());
    }
  }
}

TEST(Slice, OfASliceIsASlice) {
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{30, 50, 20}, 100);
  const Mask twice = slice(slice(mask, Spans{{10, 90}}, Spans{{0, 80}}), Spans{{5, 40}}, Spans{{20, 60}});
  const Mask once = slice(mask, Spans{{15, 50}}, Spans{{20, 60}});
  EXPECT_EQ(twice.lowered().intervals(), once.lowered().intervals());
}

TEST(Slice, KeepsTheCausalityOfTheWholeMask) {
  // The second half of the rows sees the first half of the columns throughout.
  expect_visible(slice(masks::causal(100, 100), Spans{{50, 100}}, Spans{{0, 50}}), [](auto, auto) { return true; });
}

TEST(Slice, RefusesSpansThatAreNoneOfTheMaskOrMeet) {
  const Mask mask = masks::causal(100, 80);
  EXPECT_EQ(refusal([&] {
              slice(mask, Spans{{0, 10}, {20, 101}}, Spans{});
            }),
            "slice: rows[1] = [20, 101) is no range of the mask's 100 rows; give 0 <= begin <= end <= 100");
  EXPECT_EQ(refusal([&] {
              slice(mask, Spans{}, Spans{{9, 8}});
            }),
            "slice: columns[0] = [9, 8) is no range of the mask's 80 columns; give 0 <= begin <= end <= 80");
  EXPECT_EQ(refusal([&] {
              slice(mask, Spans{{50, 60}, {10, 20}}, Spans{});
            }),
            "slice: rows[1] = [10, 20) begins before rows[0] = [50, 60) ends; give rows in ascending order, each once: "
            "rows in another order need more than two ranges a column");
  EXPECT_EQ(refusal([&] {
              slice(mask, Spans{}, Spans{{40, 60}, {10, 41}});
            }),
            "slice: column 40 lies in two spans; give each column once");
}

}  // namespace
}  // namespace flashmask
