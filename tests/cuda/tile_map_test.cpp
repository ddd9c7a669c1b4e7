#include "cuda/tile_map.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "corpus/corpus.h"
#include "cuda/device_memory.h"
#include "cuda/status.h"
#include "cuda/tile_words.h"
#include "flashmask/builders.h"
#include "flashmask/schedule.h"

namespace flashmask {
namespace {

using check::DeviceMemory;

/// The map that the device makes of a mask, by rows of tiles and by columns.
struct Maps {
  std::vector<std::uint32_t> by_column, by_row;
  std::uint32_t visited = 0;

  Maps(const IntervalMask& mask, TileShape tile) {
    const cuda::TileCounts tiles(mask.shape(), tile);
    by_column.resize(tiles.by_column_words());
    by_row.resize(tiles.by_row_words());
    const auto bytes = static_cast<std::size_t>(mask.shape().batch * mask.shape().heads * mask.shape().columns) * 4;
    DeviceMemory a(bytes), b(bytes), c(bytes), d(bytes), columns(by_column.size() * 4), rows(by_row.size() * 4),
        count(sizeof(visited));
    a.upload(mask.first_begin());
    b.upload(mask.first_end());
    c.upload(mask.second_begin());
    d.upload(mask.second_end());
    const auto words = [](const DeviceMemory& memory) { return static_cast<const std::int32_t*>(memory.data()); };
    const std::int32_t* const intervals[4] = {words(a), words(b), words(c), words(d)};
    cuda::make_tile_map(intervals, {}, mask.shape(), tile,
                        {static_cast<std::uint32_t*>(columns.data()), static_cast<std::uint32_t*>(rows.data()),
                         static_cast<std::uint32_t*>(count.data())},
                        nullptr);
    cuda::check(cudaDeviceSynchronize(), "make_tile_map");
    columns.download(by_column.data());
    rows.download(by_row.data());
    if (!by_row.empty()) count.download(&visited);
  }
};

std::uint32_t set_bits(const std::vector<std::uint32_t>& words) {
  std::uint32_t count = 0;
  for (const std::uint32_t word : words) count += static_cast<std::uint32_t>(std::popcount(word));
  return count;
}

void expect_host_schedule(const Mask& mask, TileShape tile, const std::string& name) {
  if (mask.lowered().form() != MaskForm::intervals || mask.lowered().blocks() != nullptr) return;
  const Maps maps(mask.lowered().intervals(), tile);
  const TileSchedule expected = schedule(mask.lowered(), tile);
  EXPECT_EQ(maps.by_row, check::row_words_of(expected)) << name;
  EXPECT_EQ(maps.by_column, check::column_words_of(expected)) << name;
  EXPECT_EQ(maps.visited, set_bits(maps.by_row)) << name;
}

TEST(TileMap, EqualsTheHostsScheduleOverTheCorpus) {
  for (const TileShape tile : {TileShape{128, 128}, TileShape{64, 64}, TileShape{128, 64}, TileShape{192, 96}})
    for (const corpus::Case& one : corpus::cases(2)) expect_host_schedule(one.mask(), tile, one.name());
}

TEST(TileMap, EqualsTheHostsScheduleOfLongMasks) {
  const std::vector<std::int64_t> documents(2000, 97);
  const Mask mask = masks::causal_document(documents, 200000);
  for (const TileShape tile : {TileShape{128, 128}, TileShape{64, 64}}) expect_host_schedule(mask, tile, "documents");
}

}  // namespace
}  // namespace flashmask
