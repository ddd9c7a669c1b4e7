// SPDX-License-Identifier: Apache-2.0
#include "plan/tile_size.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "plan/refusal.h"

namespace flashmask {
namespace {

/// As docs/kernels/sm90.md says of the forward at d = 128: fewer small tiles than 1.63 times the large ones and 0.9 for
/// each large row tile.
constexpr SmallTiles kForward{{128, 128}, {128, 64}, 1.63F, 0.9F, {128, 128}, std::size_t{8} << 20};

Mask documents(std::int64_t length, std::int64_t count) {
  return masks::causal_document(std::vector<std::int64_t>(static_cast<std::size_t>(count), length), length * count);
}

TileSize size(const Mask& mask, const SmallTiles& when = kForward) {
  return size_for(mask.lowered(), when, serial_executor());
}

TEST(TileSize, IsSmallForShortRowsAndLargeForLongOnes) {
  EXPECT_EQ(size(documents(65, 64)), TileSize::small);
  EXPECT_EQ(size(documents(4096, 1)), TileSize::large);
}

TEST(TileSize, ComparesTilesVisited) {
  // Ten documents of 128: a large tile or two small ones each, 10 and 20. 20 < 1.1 · 10 + 0.9 · 10 is not so.
  const Mask mask = documents(128, 10);
  EXPECT_EQ(size(mask, {{128, 128}, {128, 64}, 1.1F, 0.9F, {128, 128}, 1 << 20}), TileSize::large);
  EXPECT_EQ(size(mask, {{128, 128}, {128, 64}, 1.11F, 0.9F, {128, 128}, 1 << 20}), TileSize::small);
  // 64 x 64 under the diagonal: 3 a document, 20 row tiles.
  EXPECT_EQ(size(mask, {{128, 128}, {64, 64}, 0, 1.5F, {64, 64}, 1 << 20}), TileSize::large);
  EXPECT_EQ(size(mask, {{128, 128}, {64, 64}, 0, 1.51F, {64, 64}, 1 << 20}), TileSize::small);
}

TEST(TileSize, IsLargeWhereThereIsNoMapOfSmallTiles) {
  // 10 row tiles of 20 column tiles: two words each of 4 bytes.
  EXPECT_EQ(size(documents(65, 19), {{128, 128}, {128, 64}, 9, 9, {128, 128}, 80}), TileSize::small);
  EXPECT_EQ(size(documents(65, 19), {{128, 128}, {128, 64}, 9, 9, {128, 128}, 79}), TileSize::large);
}

TEST(TileSize, OfACpuIsItsOneAndSmallIsRefused) {
  Problem problem;
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = 650;
  problem.head_dim = problem.value_dim = 16;
  EXPECT_EQ(tile_sizes(documents(65, 10), problem), TileSizes());
  const PlanOptions large{.forward_tiles = TileSize::large, .backward_tiles = TileSize::large};
  EXPECT_NO_THROW(plan(documents(65, 10), problem, large));
  for (const PlanOptions& small :
       {PlanOptions{.forward_tiles = TileSize::small}, PlanOptions{.backward_tiles = TileSize::small}}) {
    const std::string told = refusal([&] { plan(documents(65, 10), problem, small); }, Status::unsupported);
    EXPECT_NE(told.find("has not; take TileSize::automatic or ::large"), std::string::npos) << told;
  }
}

}  // namespace
}  // namespace flashmask
