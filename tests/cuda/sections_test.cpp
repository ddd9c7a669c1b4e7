// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/sections.h"

#include <gtest/gtest.h>

#include <vector>

namespace flashmask::cuda {
namespace {

/// Of one head, of sections of equal sizes, with a last one that has fewer, and of all heads at once.
const std::vector<Sections> kAll = {{1, 1, 1}, {6, 2, 17}, {7, 3, 8}, {7, 3, 17}, {5, 5, 40}};

TEST(Sections, PutTilesOfAllHeadsInOrder) {
  for (const Sections& sections : kAll) {
    std::vector<int> times(static_cast<std::size_t>(sections.all_tiles()), 0);
    SectionTile before{0, -1, 0};
    for (int index = 0; index < sections.all_tiles(); ++index) {
      const SectionTile tile = sections.tile(index);
      ++times.at(static_cast<std::size_t>(tile.head * sections.tiles + tile.tile));
      EXPECT_EQ(tile.section, tile.head / sections.side_by_side);
      EXPECT_LE(std::vector({before.section, before.tile, before.head}),
                std::vector({tile.section, tile.tile, tile.head}));
      before = tile;
    }
    EXPECT_EQ(times, std::vector(times.size(), 1));
  }
}

TEST(Sections, KnowWhereTilesOfANumberBegin) {
  for (const Sections& sections : kAll)
    for (int index = 0; index < sections.all_tiles(); ++index) {
      const SectionTile tile = sections.tile(index);
      EXPECT_EQ(sections.index_of(tile.section, tile.tile) + tile.head % sections.side_by_side, index);
    }
}

/// As the column kernel has them: query heads that share a key head, and row tiles of their own number.
TEST(Sections, PutRowsOfQueryHeadsBesideTheirKeyHead) {
  for (const Sections& columns : kAll)
    for (const int ratio : {1, 2, 4}) {
      const Sections rows{columns.heads * ratio, columns.side_by_side * ratio, columns.tiles + 3};
      EXPECT_EQ(rows.count(), columns.count());
      for (int index = 0; index < rows.all_tiles(); ++index) {
        const SectionTile row = rows.tile(index);
        EXPECT_EQ(row.section, row.head / ratio / columns.side_by_side);
      }
    }
}

TEST(Sections, CountTheTilesOfEachBundle) {
  for (const Sections& sections : kAll) {
    std::vector<int> counted(static_cast<std::size_t>(sections.count() * sections.bundles()), 0);
    std::vector<int> expected = counted;
    for (int index = 0; index < sections.all_tiles(); ++index) {
      const SectionTile tile = sections.tile(index);
      const auto bundle = static_cast<std::size_t>(sections.bundle_of(tile.section, tile.tile));
      ++counted.at(bundle);
      expected.at(bundle) = sections.in_bundle_of(tile.section, tile.tile);
    }
    EXPECT_EQ(counted, expected);
  }
}

}  // namespace
}  // namespace flashmask::cuda
