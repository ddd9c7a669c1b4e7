// SPDX-License-Identifier: Apache-2.0
#include "flashmask/device_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "cuda/plan/map_squares.h"
#include "cuda/plan_in_memory.h"
#include "cuda/tile_words.h"
#include "flashmask/block_map.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/kernels.h"
#include "flashmask/schedule.h"
#include "flashmask/startend_row_indices.h"
#include "kit/corpus.h"
#include "kit/device_memory.h"
#include "plan/plan_choice.h"
#include "plan/refusal.h"
#include "schedule/random_mask.h"

namespace flashmask {
namespace {

using check::DeviceMemory;
using check::download;
using check::PlanInMemory;

/// Of bfloat16: float16 has the same tiles.
std::vector<KernelInfo> forward_kernels(MaskForm form) {
  std::vector<KernelInfo> chosen = check::cuda_kernels(Direction::forward);
  std::erase_if(chosen,
                [form](const KernelInfo& kernel) { return kernel.dtype != DType::bf16 || kernel.predicate != form; });
  return chosen;
}

Problem problem_for(const KernelInfo& kernel, const MaskShape& mask) {
  Problem problem;
  problem.batch = mask.batch;
  problem.query_length = mask.rows;
  problem.key_length = mask.columns;
  problem.query_heads = problem.kv_heads = mask.heads;
  problem.head_dim = kernel.head_dim;
  problem.value_dim = std::min<std::int64_t>(problem.head_dim, 128);
  problem.dtype = kernel.dtype;
  problem.device = {DeviceType::cuda, 0};
  return problem;
}

const DevicePlan& on_device(const PlanInMemory& placed) { return PlanAccess::device(placed.plan); }

PlanOptions options_for(const KernelInfo& kernel) { return {.form = kernel.predicate, .kernel = kernel.name}; }

/// As a flat map has them.
std::vector<std::uint32_t> words_of(const DeviceMap& map, const MaskShape& mask, std::size_t count) {
  if (map.squares == nullptr) return download(map.words, count);
  const cuda::SquareGrid squares(mask, map.tile, map.side, check::kSquares.squares_of_strip);
  return check::flat_words(download(map.squares, squares.numbers()), download(map.words, squares.words()),
                           cuda::TileGrid(mask, map.tile), map.side);
}

/// The map is the host's, and so is how many tiles it visits, where that is counted.
void expect_map(const DeviceMap& map, const TileSchedule& expected, const std::string& name) {
  const auto words = map.side == MapSide::rows ? check::row_words_of(expected) : check::column_words_of(expected);
  EXPECT_EQ(words_of(map, expected.mask_shape(), words.size()), words) << name;
  if (map.visited == nullptr) return;
  const auto active = static_cast<std::uint32_t>(expected.counts().active());
  EXPECT_EQ(download(map.visited, 1), std::vector{active}) << name;
}

/// Between which column tiles the rows of the host's schedule lie, over all its lists.
void expect_spans(const DeviceRowSpans& spans, const TileSchedule& schedule, const std::string& name) {
  const cuda::TileGrid tiles(schedule.mask_shape(), schedule.tile());
  std::vector<std::int32_t> from(static_cast<std::size_t>(tiles.rows), tiles.columns), until(from.size(), 0);
  for (std::int64_t list = 0; list < std::int64_t{tiles.lists} * tiles.rows; ++list)
    for (const Run& run : schedule.rows().list(list)) {
      const auto row = static_cast<std::size_t>(list % tiles.rows);
      from[row] = std::min(from[row], run.begin);
      until[row] = std::max(until[row], run.end);
    }
  // Rows before one may need its columns first, rows behind it be done after them.
  std::inclusive_scan(from.rbegin(), from.rend(), from.rbegin(), [](int a, int b) { return std::min(a, b); });
  std::inclusive_scan(until.begin(), until.end(), until.begin(), [](int a, int b) { return std::max(a, b); });
  EXPECT_EQ(download(spans.from, from.size()), from) << name;
  EXPECT_EQ(download(spans.until, until.size()), until) << name;
}

/// All maps that the kernels of a plan ask for are made, once each, and are what the host's schedule says.
void expect_host_tiles(const PlanInMemory& placed, const Mask& mask, const KernelInfo& kernel,
                       const std::string& name) {
  const std::vector<MapRequest> requests = check::requests_of(placed.plan);
  ASSERT_EQ(on_device(placed).maps.size(), requests.size()) << kernel.name;
  for (const MapRequest& request : requests) {
    const auto same = [&](const DeviceMap& map) { return map.tile == request.tile && map.side == request.side; };
    ASSERT_EQ(std::ranges::count_if(on_device(placed).maps, same), 1) << kernel.name;
    const DeviceMap& map = on_device(placed).map(request.tile, request.side);
    const std::string of =
        name + ", " + std::to_string(map.tile.rows) + " x " + std::to_string(map.tile.columns) + ", " + kernel.name;
    if (map.words == nullptr) {
      EXPECT_NE(request.most_bytes, 0U) << of;
      continue;
    }
    const TileSchedule expected = schedule(mask.lowered(), map.tile);
    expect_map(map, expected, of);
    EXPECT_EQ(map.visited != nullptr, request.counted) << of;
    EXPECT_EQ(map.spans.from != nullptr, request.spans && mask.shape().rows > 0) << of;
    if (map.spans.from != nullptr) expect_spans(map.spans, expected, of);
  }
}

template <class Source>
void expect_host_tiles(const Source& source, const Mask& mask, const KernelInfo& kernel, const std::string& name) {
  expect_host_tiles(PlanInMemory(source, problem_for(kernel, mask.shape()), {.form = {}, .kernel = kernel.name}), mask,
                    kernel, name);
}

/// Where a score of 32 lies in a word in the order of fragments.
std::int64_t fragment_place(std::int64_t i) { return i % 8 / 2 * 8 + i / 8 * 2 + i % 2; }

/// A mask's cells, copied back.
class Cells {
 public:
  explicit Cells(const DeviceMask& mask)
      : rows_((mask.shape.rows + 63) / 64), columns_((mask.shape.columns + 63) / 64), stored_(mask.bits.stored) {
    const std::int64_t lists = mask.shape.batch * mask.shape.heads * rows_;
    words_ = download(mask.bits.words, (std::size_t{mask.bits.stored} + DeviceBits::kShared) * DeviceBits::kCellWords);
    if (mask.bits.index != nullptr)
      index_ = download(mask.bits.index, static_cast<std::size_t>(lists * ((columns_ + 31) / 32)));
  }

  /// As its words by rows and its words by columns say.
  std::array<bool, 2> visible(std::int64_t list, std::int64_t row, std::int64_t column) const {
    const std::int64_t cell_row = list * rows_ + row / 64, cell_column = column / 64;
    const std::int64_t words = number(cell_row, cell_column) * DeviceBits::kCellWords, i = row % 64, j = column % 64;
    return {(word(words + j / 32 * 64 + i) >> fragment_place(j % 32) & 1) == 0,
            (word(words + 128 + i / 32 * 64 + j) >> fragment_place(i % 32) & 1) == 0};
  }

 private:
  std::int64_t number(std::int64_t cell_row, std::int64_t cell_column) const {
    if (index_.empty()) return cell_row * columns_ + cell_column;
    const CellEntry& entry = index_[static_cast<std::size_t>(cell_row * ((columns_ + 31) / 32) + cell_column / 32)];
    const std::uint32_t bit = 1U << cell_column % 32;
    if ((entry.stored & bit) != 0) return entry.first + std::popcount(entry.stored & (bit - 1));
    if ((entry.full & bit) == 0) return stored_ + DeviceBits::kSkipped;
    return stored_ + (cell_column + 1 == columns_ ? DeviceBits::kFullAtEnd : DeviceBits::kFull);
  }
  std::uint32_t word(std::int64_t at) const { return words_[static_cast<std::size_t>(at)]; }

  std::int64_t rows_, columns_, stored_;
  std::vector<std::uint32_t> words_;
  std::vector<CellEntry> index_;
};

template <class Source>
void expect_scores(const Source& source, const Mask& mask, const std::string& name) {
  const KernelInfo kernel = forward_kernels(MaskForm::bits).front();
  const MaskShape& shape = mask.shape();
  const PlanInMemory placed(source, problem_for(kernel, shape), options_for(kernel));
  const Cells cells(on_device(placed).mask);
  std::int64_t wrong = 0;
  for (std::int64_t list = 0; list < shape.batch * shape.heads; ++list)
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t column = 0; column < shape.columns; ++column) {
        const bool expected = mask.visible(list / shape.heads, list % shape.heads, row, column);
        wrong += cells.visible(list, row, column) == std::array<bool, 2>{expected, expected} ? 0 : 1;
      }
  EXPECT_EQ(wrong, 0) << name;
}

/// Dense booleans on the device; visible ones are any number but 0.
struct DenseOnDevice {
  DeviceMemory memory;
  DeviceDenseMask mask;

  DenseOnDevice(const std::vector<std::uint8_t>& visible, const MaskShape& shape,
                const std::array<std::int64_t, 4>& strides)
      : memory(static_cast<std::size_t>(shape.batch * strides[0] + shape.heads * strides[1] + shape.rows * strides[2] +
                                        shape.columns * strides[3])),
        mask{static_cast<const std::uint8_t*>(memory.data()), shape, strides} {
    std::vector<std::uint8_t> bytes(memory.bytes(), 3);  // what lies between strides counts for nothing
    std::size_t i = 0;
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t r = 0; r < shape.rows; ++r)
          for (std::int64_t c = 0; c < shape.columns; ++c, ++i)
            bytes[static_cast<std::size_t>(b * strides[0] + h * strides[1] + r * strides[2] + c * strides[3])] =
                visible[i] == 0 ? 0 : static_cast<std::uint8_t>(1 + i % 255);
    memory.upload(bytes.data());
  }
};

/// Without gaps; every row on 16 bytes; columns before rows.
std::vector<std::array<std::int64_t, 4>> layouts(const MaskShape& shape) {
  const std::int64_t padded = (shape.columns + 31) / 16 * 16;
  return {{shape.heads * shape.rows * shape.columns, shape.rows * shape.columns, shape.columns, 1},
          {shape.heads * shape.rows * padded, shape.rows * padded, padded, 1},
          {shape.heads * shape.rows * shape.columns, shape.rows * shape.columns, 1, shape.rows}};
}

struct PackedOnDevice {
  DeviceMemory memory;
  DevicePackedMask mask;

  PackedOnDevice(const std::vector<std::uint8_t>& visible, const MaskShape& shape)
      : memory(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * ((shape.columns + 7) / 8))),
        mask{static_cast<const std::uint8_t*>(memory.data()), shape} {
    std::vector<std::uint8_t> bits(memory.bytes(), 0);
    const auto row_bytes = static_cast<std::size_t>((shape.columns + 7) / 8);
    for (std::size_t i = 0; i < visible.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(shape.columns),
                        column = i % static_cast<std::size_t>(shape.columns);
      if (visible[i] != 0) bits[row * row_bytes + column / 8] |= static_cast<std::uint8_t>(1U << column % 8);
    }
    if (shape.columns % 8 != 0)  // bits past the last column count for nothing
      for (std::size_t row = row_bytes; row <= bits.size(); row += row_bytes) bits[row - 1] |= 0x80;
    memory.upload(bits.data());
  }
};

void expect_every_source(const Mask& mask, const std::string& name) {
  const MaskShape& shape = mask.shape();
  const Mask bits(lower(mask, MaskForm::bits), "as bits");
  const std::vector<std::uint8_t> visible = expand(mask);
  const PackedOnDevice packed(visible, shape);
  expect_scores(bits, mask, name + " from the host");
  expect_scores(packed.mask, mask, name + ", packed");
  for (const auto& strides : layouts(shape)) {
    const DenseOnDevice dense(visible, shape, strides);
    expect_scores(dense.mask, mask, name + ", dense");
  }
  const DenseOnDevice dense(visible, shape, layouts(shape)[1]);
  for (const KernelInfo& kernel : forward_kernels(MaskForm::bits)) {
    expect_host_tiles(bits, bits, kernel, name + " from the host");
    expect_host_tiles(dense.mask, bits, kernel, name + ", dense");
    expect_host_tiles(packed.mask, bits, kernel, name + ", packed");
  }
}

TEST(DevicePlan, HoldsTheBitsAndTilesOfTheHostOverTheCorpus) {
  for (const corpus::Case& one : corpus::cases(2)) expect_every_source(one.mask(), one.name());
}

TEST(DevicePlan, HoldsTheBitsAndTilesOfLongMasks) {
  RandomMasks masks(7);
  for (const MaskShape shape : {MaskShape{1, 1, 700, 2500}, MaskShape{2, 3, 130, 4200}, MaskShape{1, 1, 2500, 1000}}) {
    const DenseMask dense = masks.rectangles(shape);
    expect_every_source(from_dense(shape, dense.visible), "rectangles " + std::to_string(shape.columns));
  }
}

/// Causal ones of random lengths.
Mask documents_of(std::int64_t tokens, std::int64_t longest, RandomMasks& draw) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = tokens; left > 0; left -= lengths.back())
    lengths.push_back(std::min(left, 1 + draw.below(longest)));
  return masks::causal_document(lengths, tokens);
}

/// Masks of many row tiles.
std::vector<std::pair<std::string, Mask>> long_masks() {
  RandomMasks draw(8);
  std::vector<Mask> heads;
  for (const std::int64_t longest : {400, 20000}) heads.push_back(documents_of(140000, longest, draw));
  return {
      {"documents of a length a head", stack_heads(heads)},
      {"a window over more row tiles than the last block takes at once", masks::sliding_window(300000, 300000, 1000)},
      {"rows that see nothing before those that do", masks::causal(300000, 20000)}};
}

TEST(DevicePlan, HoldsTheTilesAndSpansOfManyRowTiles) {
  for (const auto& [name, mask] : long_masks())
    for (const KernelInfo& kernel : forward_kernels(MaskForm::intervals)) expect_host_tiles(mask, mask, kernel, name);
}

TEST(DevicePlan, HoldsTheTilesAndSpansInSquares) {
  for (const auto& [name, mask] : long_masks())
    for (const KernelInfo& kernel : forward_kernels(MaskForm::intervals)) {
      const PlanInMemory placed(mask, problem_for(kernel, mask.shape()), {.kernel = kernel.name}, check::kSquares);
      for (const DeviceMap& map : on_device(placed).maps) EXPECT_NE(map.squares, nullptr) << name;
      expect_host_tiles(placed, mask, kernel, name + " in squares");
    }
}

TEST(DevicePlan, TakesLittleMemoryForLongSequences) {
  const KernelInfo kernel = forward_kernels(MaskForm::intervals).front();
  const auto bytes = [&](std::int64_t tokens) {
    return plan_bytes({1, 1, tokens, tokens}, problem_for(kernel, {1, 1, tokens, tokens}));
  };
  EXPECT_LT(bytes(1 << 22), 100'000'000U);
  EXPECT_LT(bytes(1 << 23), bytes(1 << 22) * 5 / 2);
}

TEST(DevicePlan, IsFlatBesideABlockMap) {
  const std::int64_t tokens = 1 << 20;
  const std::int32_t keep = 1;
  DeviceRowIndices rows{nullptr, {1, 1, tokens, tokens}};
  const Problem problem = problem_for(forward_kernels(MaskForm::intervals).front(), rows.shape);
  const std::size_t alone = plan_bytes(rows, problem);
  rows.blocks.keep = &keep;  // read by no one here
  EXPECT_GT(plan_bytes(rows, problem), alone + (std::size_t{16} << 20));
}

TEST(DevicePlan, HoldsTheTilesOfIntervalsUnderBlockMaps) {
  int seen = 0;
  for (const corpus::Case& one : corpus::cases(2)) {
    const Mask mask = one.mask();
    if (mask.lowered().form() != MaskForm::intervals || mask.lowered().blocks() == nullptr) continue;
    for (const KernelInfo& kernel : forward_kernels(MaskForm::intervals)) {
      if (128 % kernel.tile.rows != 0 || 128 % kernel.tile.columns != 0) continue;
      expect_host_tiles(mask, mask, kernel, one.name());
      ++seen;
    }
  }
  EXPECT_GT(seen, 0);
}

/// Row indices and a block map that lie on the device, and the same mask on the host.
struct BlocksOnDevice {
  Mask mask;
  StartEndRowIndices rows;
  DeviceMemory values, keep;
  DeviceRowIndices on_device;

  BlocksOnDevice(const Mask& intervals, const std::vector<std::uint8_t>& kept, std::int64_t heads)
      : mask(intervals & BlockMap(intervals.shape(), 128, spread(kept, intervals.shape().heads / heads))),
        rows(to_startend_row_indices(intervals.lowered().intervals())),
        values(rows.values.size() * sizeof(std::int32_t)),
        keep(kept.size() * sizeof(std::int32_t)),
        on_device{static_cast<const std::int32_t*>(values.data()),
                  rows.shape,
                  rows.vectors,
                  rows.causal,
                  {static_cast<const std::int32_t*>(keep.data()), 1, heads}} {
    values.upload(rows.values.data());
    keep.upload(std::vector<std::int32_t>(kept.begin(), kept.end()).data());
  }

 private:
  static std::vector<std::uint8_t> spread(const std::vector<std::uint8_t>& kept, std::int64_t times) {
    std::vector<std::uint8_t> all;
    for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), kept.begin(), kept.end());
    return all;
  }
};

TEST(DevicePlan, ReadsBlockMapsThatLieOnTheDevice) {
  const std::int64_t rows = 1000, columns = 700;
  for (const std::int64_t heads : {1, 2}) {
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(heads * 8 * 6));
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i * i % 5 < 2 ? 0 : 1;
    const std::vector<Mask> masks = {masks::causal(rows, columns), masks::sliding_window(rows, columns, 300)};
    const BlocksOnDevice blocks(stack_heads(masks), kept, heads);
    for (const KernelInfo& kernel : forward_kernels(MaskForm::intervals))
      if (128 % kernel.tile.rows == 0 && 128 % kernel.tile.columns == 0)
        expect_host_tiles(blocks.on_device, blocks.mask, kernel, std::to_string(heads) + " heads of blocks");
  }
}

TEST(DevicePlan, TakesNoKernelWhoseTilesLieInTwoBlocks) {
  const std::vector<std::uint8_t> kept(36, 1);
  const BlocksOnDevice blocks(masks::causal(700, 700), kept, 1);
  for (const KernelInfo& kernel : forward_kernels(MaskForm::intervals)) {
    if (128 % kernel.tile.rows == 0 && 128 % kernel.tile.columns == 0) continue;
    const Problem problem = problem_for(kernel, blocks.mask.shape());
    EXPECT_NE(refusal([&] { plan_bytes(blocks.on_device, problem, {.kernel = kernel.name}); }, Status::unsupported)
                  .find("do not divide the blocks of 128"),
              std::string::npos);
    const PlanInMemory placed(blocks.mask, problem, {});
    EXPECT_EQ(128 % placed.plan.kernel(Direction::forward).tile.rows, 0);
  }
}

}  // namespace
}  // namespace flashmask
