// SPDX-License-Identifier: Apache-2.0
// Row indices on a GPU are cut into the units, and moved to the places, that the host finds for the same mask.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "cuda/plan_in_memory.h"
#include "flashmask/builders.h"
#include "flashmask/startend_row_indices.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "plan/plan_choice.h"
#include "plan/refusal.h"
#include "schedule/places.h"
#include "schedule/random_packs.h"

namespace flashmask {
namespace {

using check::DeviceMemory;
using check::download;
using check::PlanInMemory;

/// A mask's row indices, on the device.
struct RowsOnDevice {
  StartEndRowIndices rows;
  DeviceMemory values;
  DeviceRowIndices on_device;

  explicit RowsOnDevice(const Mask& mask)
      : rows(to_startend_row_indices(mask.lowered().intervals())),
        values(rows.values.size() * sizeof(std::int32_t)),
        on_device{static_cast<const std::int32_t*>(values.data()), rows.shape, rows.vectors, rows.causal} {
    values.upload(rows.values.data());
  }
};

/// Kernels of bfloat16 and intervals under invariant plans; those of one direction and tile make the same places.
std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : check::cuda_kernels(Direction::forward))
    if (kernel.dtype == DType::bf16 && kernel.predicate == MaskForm::intervals &&
        kernel.features.has(Feature::invariant))
      chosen.push_back(kernel);
  return chosen;
}

Problem problem_for(const KernelInfo& kernel, const MaskShape& mask) {
  Problem problem;
  problem.batch = mask.batch;
  problem.query_length = mask.rows;
  problem.key_length = mask.columns;
  problem.query_heads = problem.kv_heads = mask.heads;
  problem.head_dim = kernel.head_dim;
  problem.value_dim = kernel.value_dim;
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

/// One axis on the device: units that begin with the host's, and empty ones behind them.
void expect_units(const DeviceUnits& axis, const UnitLists& host, std::int64_t places, std::int64_t batch) {
  if (axis.units == nullptr) return;
  ASSERT_EQ(axis.size, host.size);
  ASSERT_EQ(axis.tokens, host.tokens);
  const std::int64_t room = places / host.size;
  const std::vector<Unit> units = download(axis.units, static_cast<std::size_t>(batch * room));
  for (std::int64_t entry = 0; entry < batch; ++entry) {
    const PlacedTokens expected = host.of(entry);
    ASSERT_LE(expected.count, room);
    for (std::int64_t i = 0; i < room; ++i) {
      const auto end = static_cast<std::int32_t>(host.tokens);
      ASSERT_EQ(units[static_cast<std::size_t>(entry * room + i)],
                i < expected.count ? expected.units[i] : Unit(end, end))
          << "unit " << i << " of entry " << entry;
    }
  }
}

void expect_order(const std::int64_t* order, const UnitLists& host, std::int64_t places, std::int64_t batch) {
  if (order == nullptr) return;
  const std::vector<std::int64_t> tokens = download(order, static_cast<std::size_t>(batch * places));
  for (std::int64_t entry = 0; entry < batch; ++entry)
    for (std::int64_t place = 0; place < places; ++place) {
      const TokenRun one = host.of(entry).at(place, 1);
      ASSERT_EQ(tokens[static_cast<std::size_t>(entry * places + place)], one.count == 0 ? -1 : one.first) << place;
    }
}

/// What a range masks of the first `rows` rows.
Interval clipped(Interval range, std::int32_t rows) {
  range.end = std::min(range.end, rows);
  return range.begin < range.end ? range : Interval{};
}

/// Columns that hold a token have the host's ranges over the rows that hold one; behind those, where empty units lie on
/// the device alone, a column of one range or none masks all.
void expect_intervals(const DeviceMask& mask, const Places& host) {
  const MaskShape &there = mask.shape, &here = host.mask.shape();
  const IntervalMask& expected = host.mask.intervals();
  std::vector<std::vector<std::int32_t>> values;
  for (const std::int32_t* array : mask.intervals)
    values.push_back(download(array, static_cast<std::size_t>(there.batch * there.heads * there.columns)));
  for (std::int64_t list = 0; list < there.batch * there.heads; ++list)
    for (std::int64_t column = 0; column < there.columns; ++column) {
      const auto at = static_cast<std::size_t>(list * there.columns + column);
      const auto rows = static_cast<std::int32_t>(there.rows);
      const auto filled = static_cast<std::int32_t>(host.rows.of(list / there.heads).count * host.rows.size);
      Interval first{0, rows}, second{};
      if (column < here.columns) {
        const std::size_t index = expected.index(list / there.heads, list % there.heads, column);
        first = expected.first(index), second = expected.second(index);
      }
      const Interval found_first{values[0][at], values[1][at]}, found_second{values[2][at], values[3][at]};
      SCOPED_TRACE("list " + std::to_string(list) + ", column " + std::to_string(column));
      ASSERT_EQ(clipped(found_first, filled), clipped(first, filled));
      ASSERT_EQ(clipped(found_second, filled), clipped(second, filled));
      const std::int32_t last = found_second.empty() ? found_first.end : found_second.end;
      if (clipped(second, filled).empty() && filled < rows) {
        ASSERT_EQ(last, rows);
      }
    }
}

/// The sides of units that whole tiles of all maps of a kernel make up.
TileShape unit_of(const std::vector<MapRequest>& maps) {
  TileShape unit{1, 1};
  for (const MapRequest& map : maps)
    unit = {std::lcm(unit.rows, map.tile.rows), std::lcm(unit.columns, map.tile.columns)};
  return unit;
}

void expect_host_places(const Mask& mask, const KernelInfo& kernel, std::int64_t most_documents = 600) {
  RowsOnDevice rows(mask);
  rows.on_device.most_documents = most_documents;
  const PlanInMemory placed(rows.on_device, problem_for(kernel, mask.shape()),
                            {.kernel = kernel.name, .invariant = true});
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (direction == Direction::backward && check::backward_kernel(placed.plan) == nullptr) continue;
    const DevicePlan& plan = PlanAccess::device(PlanAccess::of_kernel(placed.plan, direction));
    SCOPED_TRACE(mask.description() + ", " + placed.plan.kernel(direction).name);
    const TileShape unit = unit_of(direction == Direction::forward ? PlanAccess::forward(placed.plan).maps()
                                                                   : PlanAccess::backward(placed.plan).maps());
    const Places host = places(mask.lowered(), unit, 1, serial_executor());
    const MaskShape& shape = plan.mask.shape;
    expect_units(plan.row_units, host.rows, shape.rows, shape.batch);
    expect_units(plan.column_units, host.columns, shape.columns, shape.batch);
    expect_order(plan.row_order, host.rows, shape.rows, shape.batch);
    expect_order(plan.column_order, host.columns, shape.columns, shape.batch);
    expect_intervals(plan.mask, host);
  }
}

TEST(DevicePlaces, AreTheHostsOverTheCorpus) {
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    if (mask.lowered().form() != MaskForm::intervals || mask.lowered().blocks() != nullptr) continue;
    for (const KernelInfo& kernel : kernels()) expect_host_places(mask, kernel);
  }
}

TEST(DevicePlaces, AreTheHostsForRandomPacks) {
  RandomPacks packs(5);
  for (int i = 0; i < 40; ++i) {
    const Mask mask = packs.pack(1 + packs.below(2500), i % 2 == 0, false).whole();
    if (mask.lowered().form() != MaskForm::intervals) continue;
    for (const KernelInfo& kernel : kernels())
      if (kernel.head_dim <= 128) expect_host_places(mask, kernel);
  }
}

/// Packs of more columns than a block of the GPU takes, with documents across and at its borders.
TEST(DevicePlaces, AreTheHostsForLongPacks) {
  RandomPacks packs(6);
  std::vector<std::int64_t> lengths = {1024, 1024, 1, 1, 1, 1023, 2048, 5000, 3};
  while (lengths.size() < 300) lengths.push_back(packs.length());
  std::int64_t tokens = 700;
  for (const std::int64_t length : lengths) tokens += length;
  for (const Mask& mask : {masks::causal_document(lengths, tokens), masks::document(lengths, tokens),
                           masks::causal(tokens, tokens), masks::sliding_window(tokens, tokens, 500)})
    for (const KernelInfo& kernel : kernels())
      if (kernel.head_dim == 128 || kernel.head_dim == 512) expect_host_places(mask, kernel);
}

TEST(DevicePlaces, OfEntriesAndHeadsThatAreCutInOtherPlacesStayApart) {
  const Mask entries[] = {masks::causal_document({100, 300, 100}, 500), masks::document({500}, 500),
                          masks::causal_document({20, 460, 20}, 500)};
  const Mask heads[] = {masks::causal_document({100, 300, 100}, 500), masks::causal_document({100, 200, 200}, 500)};
  for (const Mask& mask : {stack_batch(entries), stack_heads(heads)})
    for (const KernelInfo& kernel : kernels()) expect_host_places(mask, kernel);
}

TEST(DevicePlaces, NeedRoomForThatManyDocumentsOnly) {
  const Mask mask = masks::causal_document({100, 300, 100, 33}, 600);  // and padding behind them
  for (const KernelInfo& kernel : kernels()) expect_host_places(mask, kernel, 5);
  if (kernels().empty()) GTEST_SKIP() << "no GPU";
  RowsOnDevice rows(mask);
  const Problem problem = problem_for(kernels().front(), mask.shape());
  const auto bytes = [&](std::int64_t documents) {
    rows.on_device.most_documents = documents;
    return plan_bytes(rows.on_device, problem, {.invariant = true});
  };
  EXPECT_LT(bytes(5), bytes(50));
  EXPECT_NE(refusal([&] { bytes(0); }, Status::invalid_argument).find("most_documents is 0"), std::string::npos);
}

}  // namespace
}  // namespace flashmask
