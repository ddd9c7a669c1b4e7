// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/tile_map.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device_intervals.h"
#include "cuda/runtime/status.h"
#include "cuda/tile_words.h"
#include "flashmask/builders.h"
#include "flashmask/schedule.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"

namespace flashmask {
namespace {

using check::DeviceMemory;

/// What the device makes of a mask in tiles of one shape.
class Maps {
 public:
  Maps(const MaskShape& mask, TileShape tile)
      : by_column(cuda::TileGrid(mask, tile).by_column_words()),
        by_row(cuda::TileGrid(mask, tile).by_row_words()),
        made_{tile, {words(columns_), words(rows_), words(count_)}} {
    count_.upload(&visited);
  }

  const cuda::TiledMaps& made() const { return made_; }
  void download() {
    columns_.download(by_column.data());
    rows_.download(by_row.data());
    if (!by_row.empty()) count_.download(&visited);
  }

  std::vector<std::uint32_t> by_column, by_row;
  std::uint32_t visited = 0;

 private:
  static std::uint32_t* words(const DeviceMemory& memory) { return static_cast<std::uint32_t*>(memory.data()); }

  DeviceMemory columns_{by_column.size() * 4}, rows_{by_row.size() * 4}, count_{4};
  cuda::TiledMaps made_;
};

/// Of all shapes in one launch.
std::vector<std::unique_ptr<Maps>> make_maps(const IntervalMask& mask, const std::vector<TileShape>& tiles) {
  const MaskShape& shape = mask.shape();
  const check::DeviceIntervals values(mask);
  std::vector<std::unique_ptr<Maps>> maps;
  std::vector<cuda::TiledMaps> made;
  for (const TileShape tile : tiles) made.push_back(maps.emplace_back(std::make_unique<Maps>(shape, tile))->made());
  cuda::make_tile_maps({values[0], values[1], values[2], values[3]}, {}, shape, made, nullptr);
  cuda::check(cudaDeviceSynchronize(), "make_tile_maps");
  for (const auto& one : maps) one->download();
  return maps;
}

std::uint32_t set_bits(const std::vector<std::uint32_t>& words) {
  std::uint32_t count = 0;
  for (const std::uint32_t word : words) count += static_cast<std::uint32_t>(std::popcount(word));
  return count;
}

/// What one launch makes, and another.
const std::vector<std::vector<TileShape>> kLaunches = {{{128, 128}, {64, 64}, {64, 128}, {192, 96}}, {{128, 64}}};

void expect_host_schedule(const Mask& mask, const std::string& name) {
  for (const std::vector<TileShape>& tiles : kLaunches) {
    const auto maps = make_maps(mask.lowered().intervals(), tiles);
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      const std::string what =
          name + ", tiles of " + std::to_string(tiles[i].rows) + " x " + std::to_string(tiles[i].columns);
      const TileSchedule expected = schedule(mask.lowered(), tiles[i]);
      EXPECT_TRUE(maps[i]->by_row == check::row_words_of(expected)) << what;
      EXPECT_TRUE(maps[i]->by_column == check::column_words_of(expected)) << what;
      EXPECT_EQ(maps[i]->visited, set_bits(maps[i]->by_row)) << what;
    }
  }
}

TEST(TileMap, EqualsTheHostsScheduleOverTheCorpus) {
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    if (mask.lowered().form() == MaskForm::intervals && mask.lowered().blocks() == nullptr)
      expect_host_schedule(mask, one.name());
  }
}

TEST(TileMap, EqualsTheHostsScheduleOfLongMasks) {
  const std::vector<std::int64_t> documents(2000, 97);
  expect_host_schedule(masks::causal_document(documents, 200000), "documents");
}

TEST(TileMap, EqualsTheHostsScheduleOfRandomRanges) {
  for (const bool anywhere : {true, false})
    for (const MaskShape shape :
         {MaskShape{2, 3, 5000, 3000}, MaskShape{1, 1, 40000, 9001}, MaskShape{1, 2, 33, 20000}})
      expect_host_schedule(check::random_intervals(shape, anywhere), std::to_string(shape.rows) + " rows");
}

TEST(TileMap, KnowsNoLimitOfRows) {
  for (const bool anywhere : {true, false})
    expect_host_schedule(check::random_intervals({1, 1, 3'000'001, 300}, anywhere), "3,000,001 rows");
}

TEST(TileMap, KnowsNoLimitOfLists) {
  expect_host_schedule(check::random_intervals({700, 101, 150, 130}, true), "70,700 lists");
}

}  // namespace
}  // namespace flashmask
