// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/formula/formula_kernels.cuh"

/// The kernels that find a formula's ranges, on the emulator, against the CPU's search.
namespace flashmask::cuda {
namespace {

using Numbers = std::vector<std::int64_t>;

unsigned blocks_of(std::int64_t items, int threads) { return static_cast<unsigned>((items + threads - 1) / threads); }

/// Runs all four kernels; what they have not written holds anything but zeros.
std::int32_t find_emulated(const Formula& formula, std::vector<std::int32_t>& ranges) {
  Preparation made = prepared_for_gpu(formula);
  std::vector<std::uint64_t> memory(Layout(made, nullptr).bytes() / 8, 0xABABABABABABABAB);
  const Layout layout(made, memory.data());
  std::int32_t found = 0;
  const DeviceFormula device = on_device(made, layout.runs, &found);
  const auto planes = static_cast<unsigned>(made.sizes.planes);
  const auto numbers = static_cast<unsigned>(made.numbers.size()), groups = static_cast<unsigned>(made.groups.size());
  std::fill_n(layout.runs, groups * planes, 0);
  const auto run = [&](unsigned blocks, unsigned layers, unsigned threads, const std::function<void()>& kernel) {
    if (layers == 0) return;
    emulator::run({.blocks = blocks, .threads = threads, .blocks_y = planes, .blocks_z = layers}, kernel);
  };
  const unsigned blocks = blocks_of(made.sizes.places, kRowThreads);
  run(blocks, numbers + groups, kRowThreads, [&] { read_rows(device); });
  run(2, numbers + groups, kRowThreads, [&] { finish_trees(device); });
  run(blocks, groups, kRowThreads, [&] { insert_runs(device); });
  run(blocks_of(made.sizes.columns, kColumnThreads), 1, kColumnThreads,
      [&] { find_columns(device, formula.visible, formula.slots, ranges.data()); });
  return found;
}

void expect_same(const Formula& formula) {
  const MaskShape& shape = formula.shape;
  const auto count =
      static_cast<std::size_t>(shape.batch * shape.heads * shape.columns) * 2 * static_cast<std::size_t>(formula.slots);
  std::vector<std::int32_t> expected(count), ranges(count);
  const std::int32_t found = find_ranges(formula, expected.data(), serial_executor());
  const std::int32_t emulated = find_emulated(formula, ranges);
  if (found > formula.slots) {
    EXPECT_GT(emulated, formula.slots);
  } else {
    EXPECT_EQ(emulated, found);
    EXPECT_EQ(ranges, expected);
  }
}

TokenNumbers of(const Numbers& numbers, std::int64_t entry_stride = 0) {
  return {numbers.data(), {entry_stride, 0, 1}, NumberType::i64};
}

TEST(EmulatedFormula, FindsTheRangesThatTheCpuFinds) {
  std::mt19937_64 random(0);
  const TokenNumbers index{nullptr, {0, 0, 0}, NumberType::i64};
  for (const std::int64_t size : {1, 40, 257, 1100}) {
    Numbers ids, image, any;
    for (std::int64_t i = 0; i < 2 * size; ++i) ids.push_back((ids.empty() ? 0 : ids.back()) + (random() % 40 == 0));
    for (const std::int64_t id : ids) image.push_back(id % 2 == 0 ? -1 : id);
    for (std::int64_t i = 0; i < 2 * size; ++i) any.push_back(static_cast<std::int64_t>(random() % 7));
    std::vector<std::uint8_t> flags;
    for (const std::int64_t each : image) flags.push_back(each >= 0 ? 1 : 0);
    const Condition causal{ConditionKind::greater_equal, 0, index, index};
    const Condition same{ConditionKind::equal, 0, of(ids, size), of(ids, size)};
    const Condition same_image{ConditionKind::equal, 0, of(image), of(image)};
    const Condition flagged{ConditionKind::row_fact, 0, {flags.data(), {0, 0, 1}, NumberType::boolean}, {}};
    const Condition order{ConditionKind::less_equal, 0, of(any), of(any)};
    const Condition unequal{ConditionKind::unequal, 0, of(any, size), of(any)};
    const Condition both{ConditionKind::conjunction, 2, {}, {}}, either{ConditionKind::disjunction, 2, {}, {}};
    std::vector<std::uint8_t> ends(static_cast<std::size_t>(size), 0);  // far apart: a search climbs the whole tree
    ends.front() = ends.back() = 1;
    const Condition far_apart{ConditionKind::row_fact, 0, {ends.data(), {0, 0, 1}, NumberType::boolean}, {}};
    for (const auto& conditions : std::vector<std::vector<Condition>>{{both, causal, same},
                                                                      {either, causal, both, same_image, flagged},
                                                                      {both, same, either, order, unequal},
                                                                      {unequal},
                                                                      {far_apart},
                                                                      {causal}})
      for (const bool visible : {true, false}) {
        expect_same({conditions, {2, 1, size, size}, visible, 2});
        expect_same({conditions, {1, 1, size, size / 2 + 1}, visible, kMostSlots});
      }
  }
}

TEST(EmulatedFormula, NoticesNumbersThatAreNone) {
  const std::vector<double> numbers{0, 1, std::numeric_limits<double>::quiet_NaN(), 3};
  const TokenNumbers given{numbers.data(), {0, 0, 1}, NumberType::f64};
  std::vector<std::int32_t> ranges(16);
  const Formula formula{{{ConditionKind::less, 0, given, given}}, {1, 1, 4, 4}, true, 2};
  EXPECT_EQ(find_emulated(formula, ranges), kNotANumber);
}

}  // namespace
}  // namespace flashmask::cuda
