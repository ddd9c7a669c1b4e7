// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/map_squares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_intervals.h"
#include "cuda/runtime/status.h"
#include "cuda/tile_words.h"
#include "flashmask/builders.h"
#include "flashmask/schedule.h"
#include "kit/device_memory.h"

namespace flashmask {
namespace {

using check::DeviceMemory;
using cuda::MapSquares;

/// A map in squares, copied back.
struct SquareMap {
  TileShape tile;
  MapSide side;
  MaskShape mask;
  std::vector<std::uint32_t> numbers, words;
  std::uint32_t visited = 0;

  SquareMap(const IntervalMask& of, TileShape tiles, MapSide by, int of_strip)
      : tile(tiles), side(by), mask(of.shape()) {
    const cuda::SquareGrid grid(mask, tile, side, of_strip);
    numbers.resize(grid.numbers());
    words.resize(grid.words());
    const check::DeviceIntervals given(of);
    const DeviceMemory numbers_there(numbers.size() * 4), words_there(words.size() * 4), notes(grid.note_words() * 4);
    DeviceMemory count(4);
    count.upload(&visited);
    const auto at = [](const DeviceMemory& memory) { return static_cast<std::uint32_t*>(memory.data()); };
    cuda::make_square_map({given[0], given[1], given[2], given[3]}, mask, tile,
                          {side, at(numbers_there), at(words_there), at(notes), at(count), grid.stored()}, nullptr);
    cuda::check(cudaDeviceSynchronize(), "make_square_map");
    numbers_there.download(numbers.data());
    words_there.download(words.data());
    count.download(&visited);
  }

  std::vector<std::uint32_t> flat() const {
    return check::flat_words(numbers, words, cuda::TileGrid(mask, tile), side);
  }
};

/// Whether the bits behind the numbers say which of them are visited.
bool says_where(const SquareMap& map) {
  const std::size_t strips = cuda::SquareGrid(map.mask, map.tile, map.side, 0).strips(),
                    words = map.numbers.size() / strips - 1;
  std::vector<std::uint32_t> bits(strips, 0);
  for (std::size_t i = 0; i < strips * words; ++i)
    if (map.numbers[i] != MapSquares::kSkipped)
      bits[i / words] |= 1U << (i % words >> cuda::occupied_shift(static_cast<int>(words)));
  return std::equal(bits.begin(), bits.end(), map.numbers.end() - static_cast<std::ptrdiff_t>(strips));
}

std::uint32_t set_bits(const std::vector<std::uint32_t>& words) {
  std::uint32_t count = 0;
  for (const std::uint32_t word : words) count += static_cast<std::uint32_t>(std::popcount(word));
  return count;
}

/// Room for every square that any mask has.
constexpr int kEnough = 1 << 20;

std::vector<std::pair<std::string, Mask>> masks_of_many_squares() {
  std::vector<Mask> heads;
  for (const std::int64_t length : {97, 5000, 40000}) {
    const std::vector<std::int64_t> documents(static_cast<std::size_t>(40000 / length), length);
    heads.push_back(masks::causal_document(documents, 40000));
  }
  return {{"documents of a length a head", stack_heads(heads)},
          {"full, ragged", masks::full(20001, 30007)},
          {"a window", masks::sliding_window(50000, 40000, 9000)},
          {"ranges that jump", check::random_intervals({2, 1, 30000, 20000}, false)},
          {"ranges anywhere", check::random_intervals({1, 2, 9001, 40000}, true)},
          {"a square of one tile", masks::causal(33 * 64, 33 * 64)},
          {"more words than bits say where", masks::sliding_window(3'000'001, 300, 1000)},
          {"3,000,001 rows", check::random_intervals({1, 1, 3'000'001, 300}, false)}};
}

TEST(MapSquares, SayWhatTheHostsScheduleSays) {
  for (const auto& [name, mask] : masks_of_many_squares())
    for (const TileShape tile : {TileShape{128, 128}, {64, 128}, {192, 96}, {64, 64}}) {
      const TileSchedule expected = schedule(mask.lowered(), tile);
      const std::string what = name + ", tiles of " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns);
      const SquareMap by_row(mask.lowered().intervals(), tile, MapSide::rows, kEnough);
      EXPECT_TRUE(by_row.flat() == check::row_words_of(expected)) << what;
      EXPECT_TRUE(says_where(by_row)) << what;
      EXPECT_EQ(by_row.visited, static_cast<std::uint32_t>(expected.counts().active())) << what;
      const SquareMap by_column(mask.lowered().intervals(), tile, MapSide::columns, kEnough);
      EXPECT_TRUE(by_column.flat() == check::column_words_of(expected)) << what;
      EXPECT_TRUE(says_where(by_column)) << what;
      EXPECT_EQ(by_column.visited, by_row.visited) << what;
    }
}

/// Which words of a map without room for all squares are neither those that they should be nor partial throughout, and
/// which are not those that they should be.
struct Differences {
  int wrong = 0, partial = 0;

  Differences(const std::vector<std::uint32_t>& expected, const SquareMap& found) {
    const cuda::TileGrid tiles(found.mask, found.tile);
    const bool by_rows = found.side == MapSide::rows;
    const int words = by_rows ? tiles.column_words() : tiles.row_words(), inner = by_rows ? tiles.columns : tiles.rows;
    const std::vector<std::uint32_t> map = found.flat();
    for (std::size_t line = 0; line < map.size(); line += 2 * static_cast<std::size_t>(words))
      for (int word = 0; word < words; ++word) {
        const std::size_t first = line + static_cast<std::size_t>(word),
                          second = first + static_cast<std::size_t>(words);
        if (map[first] == expected[first] && map[second] == expected[second]) continue;
        const int left = inner - 32 * word;
        const std::uint32_t existing = left >= 32 ? ~0U : (1U << left) - 1;
        ++(map[first] == existing && map[second] == 0 ? partial : wrong);
      }
  }
};

TEST(MapSquares, WithoutRoomArePartialThroughout) {
  const TileShape tile{64, 64};
  for (const auto& [name, mask] : masks_of_many_squares())
    for (const MapSide side : {MapSide::rows, MapSide::columns}) {
      const IntervalMask& given = mask.lowered().intervals();
      const std::vector<std::uint32_t> expected = SquareMap(given, tile, side, kEnough).flat();
      for (const int of_strip : {0, 1}) {
        const std::string what = name + ", " + std::to_string(of_strip) + " a strip";
        const SquareMap some(given, tile, side, of_strip);
        const Differences differences(expected, some);
        EXPECT_EQ(differences.wrong, 0) << what;
        if (of_strip == 0 && name != "full, ragged") {
          EXPECT_GT(differences.partial, 0) << what;
        }
        EXPECT_EQ(some.visited, set_bits(some.flat())) << what;
        EXPECT_TRUE(SquareMap(given, tile, side, of_strip).numbers == some.numbers) << what;
      }
    }
}

}  // namespace
}  // namespace flashmask
