// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using masks::NeighbourhoodAxis;
using testing::expect_visible;
using testing::refusal;

/// The tokens along an axis that a token sees, found by sliding: the centred window, pushed inside one step at a time.
bool sees(const NeighbourhoodAxis& axis, std::int64_t i, std::int64_t j) {
  std::int64_t begin = i - axis.kernel / 2 * axis.dilation;
  while (begin < 0) begin += axis.dilation;
  while (begin + (axis.kernel - 1) * axis.dilation >= axis.length) begin -= axis.dilation;
  return j >= begin && j <= begin + (axis.kernel - 1) * axis.dilation && (j - begin) % axis.dilation == 0;
}

TEST(Neighbourhood, OfTwoAxesSeesAWholeWindowEverywhere) {
  const std::array<std::array<NeighbourhoodAxis, 2>, 6> grids = {{
      {{{8, 3}, {8, 3}}},
      {{{5, 5}, {13, 7}}},
      {{{7, 4}, {9, 2}}},
      {{{1, 1}, {130, 31}}},
      {{{11, 3, 3}, {10, 3, 2}}},
      {{{10, 2, 5}, {7, 7}}},
  }};
  for (const auto& axes : grids) {
    const std::int64_t w = axes[1].length;
    expect_visible(masks::neighbourhood_2d(axes[0], axes[1]),
                   [&](auto i, auto j) { return sees(axes[0], i / w, j / w) && sees(axes[1], i % w, j % w); });
  }
}

TEST(Neighbourhood, OfThreeAxesSeesAWholeWindowEverywhere) {
  const std::array<std::array<NeighbourhoodAxis, 3>, 3> grids = {{
      {{{4, 3}, {5, 3}, {6, 5}}},
      {{{5, 2, 2}, {3, 3}, {7, 3, 2}}},
      {{{2, 1}, {1, 1}, {67, 3, 5}}},
  }};
  for (const auto& axes : grids) {
    const std::int64_t h = axes[1].length;
    const std::int64_t w = axes[2].length;
    expect_visible(masks::neighbourhood_3d(axes[0], axes[1], axes[2]), [&](auto i, auto j) {
      return sees(axes[0], i / w / h, j / w / h) && sees(axes[1], i / w % h, j / w % h) && sees(axes[2], i % w, j % w);
    });
  }
}

TEST(Neighbourhood, GivesEveryTokenAsManyNeighbours) {
  const Mask mask = masks::neighbourhood_2d({9, 5}, {14, 3, 4});
  const std::vector<std::uint8_t> scores = expand(mask);
  for (auto row = scores.begin(); row != scores.end(); row += 126) EXPECT_EQ(std::count(row, row + 126, 1), 15);
}

TEST(Neighbourhood, TakesAnyNumberOfAxes) {
  expect_visible(masks::neighbourhood(std::array<NeighbourhoodAxis, 1>{{{70, 9, 3}}}), [](auto i, auto j) {
    return sees({70, 9, 3}, i, j);
  });
  const NeighbourhoodAxis axis{4, 3};
  expect_visible(masks::neighbourhood(std::array{axis, axis, axis, axis}), [&](auto i, auto j) {
    return sees(axis, i / 64, j / 64) && sees(axis, i / 16 % 4, j / 16 % 4) && sees(axis, i / 4 % 4, j / 4 % 4) &&
           sees(axis, i % 4, j % 4);
  });
}

TEST(Neighbourhood, RefusesAKernelThatDoesNotFit) {
  EXPECT_EQ(refusal([] {
              masks::neighbourhood_2d({8, 3}, {8, 9});
            }),
            "neighbourhood: axes[1]: kernel is 9 at a dilation of 1 but length is 8; give kernel x dilation <= length");
  EXPECT_EQ(refusal([] {
              masks::neighbourhood_2d({8, 3, 3}, {8, 3});
            }),
            "neighbourhood: axes[0]: kernel is 3 at a dilation of 3 but length is 8; give kernel x dilation <= length");
  EXPECT_EQ(refusal([] {
              masks::neighbourhood_2d({8, 0}, {8, 3});
            }),
            "neighbourhood: axes[0]: kernel is 0; give the tokens that a token sees along the axis (>= 1)");
  EXPECT_EQ(refusal([] {
              masks::neighbourhood_3d({8, 1}, {8, 1}, {8, 1, 0});
            }),
            "neighbourhood: axes[2]: dilation is 0; give the distance between two of them (>= 1)");
  EXPECT_EQ(refusal([] {
              masks::neighbourhood_2d({1 << 20, 3}, {1 << 20, 3});
            }),
            "neighbourhood: the product of the lengths is 1,099,511,627,776; give a size from 0 to 2,147,483,647 "
            "(2^31 - 1)");
}

}  // namespace
}  // namespace flashmask
