// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "c_api/convert.h"
#include "flashmask/builders.h"

namespace flashmask::c_api {
namespace {

using PartitionHandle = std::unique_ptr<flashmask_partition, decltype(&flashmask_partition_destroy)>;

PartitionHandle make(const flashmask_mask& mask, std::vector<std::int64_t> sizes, std::int32_t division) {
  flashmask_partition_options options = FLASHMASK_INIT(flashmask_partition_options);
  options.division = division;
  const flashmask_mask* const masks[] = {&mask};
  flashmask_partition* made = nullptr;
  EXPECT_EQ(flashmask_partition_create(masks, nullptr, 1, sizes.data(), std::ssize(sizes), &options, &made),
            FLASHMASK_OK)
      << flashmask_last_error();
  return {made, flashmask_partition_destroy};
}

flashmask_partition_view view_of(const PartitionHandle& partition) {
  flashmask_partition_view view = FLASHMASK_INIT(flashmask_partition_view);
  EXPECT_EQ(flashmask_partition_get(partition.get(), &view), FLASHMASK_OK) << flashmask_last_error();
  return view;
}

const flashmask_mask& documents() {
  static const flashmask_mask mask{masks::causal_document(std::vector<std::int64_t>{700, 300, 1500, 500}, 3000)};
  return mask;
}

TEST(PartitionInC, IsThatOfTheLibrary) {
  const Partition expected = partition(documents().mask, 4);
  const PartitionHandle made = make(documents(), {2, 2}, FLASHMASK_BALANCED);
  const flashmask_partition_view view = view_of(made);
  EXPECT_EQ(view.tokens, 3000);
  EXPECT_EQ(view.ranks, 4);
  EXPECT_EQ(view.tile, 128);
  EXPECT_EQ(view.aligned != 0, expected.aligned());
  EXPECT_EQ(view.why, expected.why());
  std::vector<RankRun> runs;
  for (std::int64_t i = 0; i < view.run_count; ++i) {
    const std::int64_t* const run = view.runs + 3 * i;
    runs.push_back({{run[0], run[1]}, static_cast<std::int32_t>(run[2])});
  }
  EXPECT_EQ(runs, expected.runs());
}

TEST(PartitionInC, TellsNeedsLoadsAndTimes) {
  const PartitionHandle made = make(documents(), {3}, FLASHMASK_ZIGZAG);
  const Partition expected = partition(documents().mask, 3, {.division = Division::zigzag});
  flashmask_needs* needs = nullptr;
  ASSERT_EQ(flashmask_partition_needs(made.get(), &documents(), &needs), FLASHMASK_OK) << flashmask_last_error();
  const std::unique_ptr<flashmask_needs, decltype(&flashmask_needs_destroy)> owner(needs, flashmask_needs_destroy);
  const std::int64_t* values = nullptr;
  std::int64_t count = 0;
  ASSERT_EQ(flashmask_needs_get(needs, &values, &count), FLASHMASK_OK);
  std::vector<Need> found;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t* const need = values + 4 * i;
    found.push_back({static_cast<std::int32_t>(need[0]), static_cast<std::int32_t>(need[1]), {need[2], need[3]}});
  }
  EXPECT_EQ(found, flashmask::needs(expected, documents().mask));

  std::vector<std::int64_t> told(3 * 6);
  ASSERT_EQ(flashmask_partition_loads(made.get(), &documents(), told.data()), FLASHMASK_OK);
  const std::vector<RankLoad> loads = flashmask::loads(expected, documents().mask);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const std::int64_t* const load = told.data() + 6 * rank;
    EXPECT_EQ((RankLoad{load[0], load[1], load[2], load[3], load[4], load[5]}), loads[rank]);
  }

  flashmask_partition_options slow = FLASHMASK_INIT(flashmask_partition_options);
  slow.bytes_per_ns = 1;
  std::int64_t nanoseconds[3];
  ASSERT_EQ(flashmask_partition_predict(made.get(), &documents(), &slow, nanoseconds), FLASHMASK_OK);
  const PredictedTime time = predict(loads, documents().mask.shape(), {.bytes_per_ns = 1});
  EXPECT_EQ(nanoseconds[0], time.attention);
  EXPECT_EQ(nanoseconds[1], time.wire);
  EXPECT_EQ(nanoseconds[2], time.ideal);
}

TEST(PartitionInC, TakesGivenRunsAndWeights) {
  const std::int64_t runs[] = {1000, 3000, 0, 0, 1000, 1};
  flashmask_partition* made = nullptr;
  ASSERT_EQ(flashmask_partition_from_runs(3000, 2, 0, runs, 2, &made), FLASHMASK_OK) << flashmask_last_error();
  const PartitionHandle given(made, flashmask_partition_destroy);
  EXPECT_EQ(view_of(given).aligned, 0);
  EXPECT_EQ(view_of(given).run_count, 2);
  EXPECT_EQ(flashmask_partition_from_runs(3000, 2, 0, runs, 1, &made), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_STREQ(flashmask_last_error(), "partition: no rank holds token 0; give each token to one rank");

  EXPECT_EQ(flashmask_partition_from_runs(3000, 2, 0, runs, std::int64_t{1} << 62, &made), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_STREQ(flashmask_last_error(), "runs has more than 2^63 values; give smaller sizes");

  const flashmask_mask* const masks[] = {&documents(), nullptr};
  const std::int64_t weights[] = {0}, sizes[] = {2};
  EXPECT_EQ(flashmask_partition_create(masks, weights, 1, sizes, 1, nullptr, &made), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_STREQ(flashmask_last_error(), "partition: the weight of a mask is 0; give at least 1");
  EXPECT_EQ(flashmask_partition_create(masks, nullptr, 2, sizes, 1, nullptr, &made), FLASHMASK_INVALID_ARGUMENT);
}

TEST(TileSizesInC, AreAutomaticOnACpuAndNoOthersAreKnown) {
  flashmask_problem problem = FLASHMASK_INIT(flashmask_problem);
  problem.batch = problem.query_heads = problem.kv_heads = 1;
  problem.query_length = problem.key_length = 3000;
  problem.head_dim = problem.value_dim = 16;
  std::int32_t forward = -1, backward = -1;
  ASSERT_EQ(flashmask_plan_tile_sizes(&documents(), &problem, nullptr, &forward, &backward), FLASHMASK_OK);
  EXPECT_EQ(forward, FLASHMASK_TILES_AUTOMATIC);
  EXPECT_EQ(backward, FLASHMASK_TILES_AUTOMATIC);
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.backward_tiles = 3;
  EXPECT_EQ(flashmask_plan_tile_sizes(&documents(), &problem, &options, &forward, &backward),
            FLASHMASK_INVALID_ARGUMENT);
  EXPECT_STREQ(flashmask_last_error(), "options.backward_tiles is 3; give 0 to 2");
}

}  // namespace
}  // namespace flashmask::c_api
