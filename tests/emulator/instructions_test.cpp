// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "cuda/common/copy_mask.cuh"
#include "cuda/common/fragment_words.cuh"
#include "cuda/instruction_results.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/scores/softcap.cuh"
#include "kit/rounding.h"
#include "plan/device_plan.h"

/// What kernels of mma.sync are made of, on the emulator.
namespace flashmask::cuda::sm80 {
namespace {

using emulator::Copies;

/// Few enough that bfloat16 holds them.
float number(int row, int column) { return static_cast<float>((row * 7 + column * 3) % 61 - 30); }

/// Rows of a tensor that ends at rows × dim.
struct Source {
  std::vector<std::uint16_t> words;
  Rows rows;

  Source(int count, int dim) : words(static_cast<std::size_t>(count * dim)) {
    for (int row = 0; row < count; ++row)
      for (int column = 0; column < dim; ++column)
        words[static_cast<std::size_t>(row * dim + column)] = check::to_bf16(number(row, column));
    rows = {words.data(), dim, count, dim};
  }
  std::vector<std::array<const std::byte*, 2>> readable() const {
    const auto* begin = reinterpret_cast<const std::byte*>(words.data());
    return {{begin, begin + words.size() * sizeof(words[0])}};
  }
};

TEST(EmulatedInstructions, DoWhatTheirCommentsSay) {
  for (const Copies copies : {Copies::early, Copies::late}) {
    std::vector<InstructionResults> results(32);
    alignas(16) std::array<std::uint32_t, 128> given;
    std::ranges::copy(given_words(), given.begin());
    std::vector<float> sums(8, 0);
    emulator::run({.threads = 32, .shared_bytes = sizeof(InstructionMemory), .copies = copies},
                  [&] { run_instructions(results.data(), given.data(), sums.data()); });
    expect_instructions(results, sums);
  }
}

template <class Tile>
struct TileMemory {
  alignas(128) std::uint8_t tile[Tile::kBytes];
};

/// d = the tile's rows times the tile's rows, transposed, by one warp.
template <class Tile>
void square(std::uint32_t tile, std::vector<float>& out) {
  for (int row = 0; row < Tile::kRows; row += 16) {
    for (int column = 0; column < Tile::kRows; column += 16) {
      float d[2][4] = {};
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        std::uint32_t a[4], b[4];
        load_matrices(a, tile + Tile::lane_rows() + Tile::step(row, panel));
        load_matrices(b, tile + Tile::lane_columns() + Tile::step(column, panel));
        multiply<__nv_bfloat16>(d[0], a, b[0], b[1]);
        multiply<__nv_bfloat16>(d[1], a, b[2], b[3]);
      }
      const int lane = lane_index();
      for (int i = 0; i < 8; ++i) {
        const int at_row = row + lane / 4 + i % 4 / 2 * 8, at_column = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        out[static_cast<std::size_t>(at_row * Tile::kRows + at_column)] = d[i / 4][i % 4];
      }
    }
  }
}

/// d = the tile, transposed, times the tile.
template <class Tile>
void square_of_columns(std::uint32_t tile, std::vector<float>& out) {
  for (int row = 0; row < Tile::kDim; row += 16) {
    for (int column = 0; column < Tile::kDim; column += 16) {
      float d[2][4] = {};
      for (int inner = 0; inner < Tile::kRows; inner += 16) {
        std::uint32_t a[4], b[4];
        load_matrices_transposed(a, tile + Tile::lane_columns() + Tile::step(inner, row / 16));
        load_matrices_transposed(b, tile + Tile::lane_rows() + Tile::step(inner, column / 16));
        multiply<__nv_bfloat16>(d[0], a, b[0], b[1]);
        multiply<__nv_bfloat16>(d[1], a, b[2], b[3]);
      }
      const int lane = lane_index();
      for (int i = 0; i < 8; ++i) {
        const int at_row = row + lane / 4 + i % 4 / 2 * 8, at_column = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        out[static_cast<std::size_t>(at_row * Tile::kDim + at_column)] = d[i / 4][i % 4];
      }
    }
  }
}

template <int kRows, int kDim, int kThreads>
void expect_products(int first, int rows, int dim, Copies copies) {
  using Tile = SharedTile<kRows, kDim>;
  const Source source(rows, dim);
  std::vector<float> of_rows(kRows * kRows), of_columns(kDim * kDim);
  emulator::run(
      {.threads = kThreads, .shared_bytes = sizeof(TileMemory<Tile>), .copies = copies, .readable = source.readable()},
      [&] {
        auto& memory = shared_memory<TileMemory<Tile>>();
        const std::uint32_t tile = shared_address(memory.tile);
        Tile::template copy<kThreads>(tile, source.rows, first, threadIdx.x);
        commit_copies();
        await_copies<0>();
        __syncthreads();
        if (threadIdx.x / 32 == 0) square<Tile>(tile, of_rows);
        if (threadIdx.x / 32 == 1) square_of_columns<Tile>(tile, of_columns);
      });
  const auto at = [&](int row, int column) {
    return first + row < rows && column < dim ? number(first + row, column) : 0.0F;
  };
  for (int row = 0; row < kRows; ++row)
    for (int other = 0; other < kRows; ++other) {
      float sum = 0;
      for (int i = 0; i < kDim; ++i) sum += at(row, i) * at(other, i);
      ASSERT_EQ(of_rows[static_cast<std::size_t>(row * kRows + other)], sum) << row << ", " << other;
    }
  for (int column = 0; column < kDim; ++column)
    for (int other = 0; other < kDim; ++other) {
      float sum = 0;
      for (int i = 0; i < kRows; ++i) sum += at(i, column) * at(i, other);
      ASSERT_EQ(of_columns[static_cast<std::size_t>(column * kDim + other)], sum) << column << ", " << other;
    }
}

TEST(SharedTile, IsWhatProductsRead) {
  for (const Copies copies : {Copies::early, Copies::late}) {
    expect_products<64, 64, 128>(16, 200, 64, copies);
    expect_products<64, 96, 256>(0, 64, 96, copies);
    expect_products<32, 128, 128>(0, 64, 128, copies);
    expect_products<64, 256, 256>(0, 64, 256, copies);
  }
}

TEST(SharedTile, HasZerosPastTheLastRowAndTheLastDim) {
  expect_products<64, 64, 128>(64, 101, 40, Copies::either);
  expect_products<64, 128, 256>(64, 65, 120, Copies::either);
}

TEST(Emulator, SeesAWaitAndABarrierThatAreMissing) {
  using Tile = SharedTile<64, 64>;
  const Source source(64, 64);
  const auto sum_with = [&](bool waits, bool meets, unsigned seed) {
    float sum = 0;
    emulator::run({.threads = 128, .shared_bytes = Tile::kBytes, .copies = Copies::late, .seed = seed}, [&] {
      const auto& memory = shared_memory<TileMemory<Tile>>();
      Tile::copy<128>(shared_address(memory.tile), source.rows, 0, threadIdx.x);
      commit_copies();
      if (waits) await_copies<0>();
      if (meets) __syncthreads();
      if (threadIdx.x != 0) return;
      for (int i = 0; i < 64 * 8; ++i)
        for (int j = 0; j < 8; ++j) {
          const std::uint8_t* chunk = memory.tile + Tile::step(0, i % 8 / 2) + Tile::chunk(i / 8, i % 2);
          sum += check::from_bf16(reinterpret_cast<const std::uint16_t*>(chunk)[j]);
        }
    });
    return sum;
  };
  float expected = 0;
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 64; ++column) expected += number(row, column);
  EXPECT_EQ(sum_with(true, true, 1), expected);
  EXPECT_NE(sum_with(false, true, 1), expected);
  int wrong = 0;
  for (unsigned seed = 1; seed <= 8; ++seed) wrong += sum_with(true, false, seed) != expected ? 1 : 0;
  EXPECT_GT(wrong, 0);
}

TEST(Emulator, SaysWhereThreadsHangAndWhereCopiesReadTooFar) {
  EXPECT_THROW(emulator::run({},
                             [] {
                               if (threadIdx.x < 32) __syncthreads();
                             }),
               std::runtime_error);
  EXPECT_THROW(emulator::run({},
                             [] {
                               if (threadIdx.x % 32 != 3) __syncwarp();
                             }),
               std::runtime_error);
  const Source source(63, 64);
  EXPECT_THROW(emulator::run({.shared_bytes = 8192, .readable = source.readable()},
                             [&] {
                               Rows rows = source.rows;
                               rows.rows = 64;
                               SharedTile<64, 64>::copy<128>(0, rows, 0, threadIdx.x);
                             }),
               std::runtime_error);
}

constexpr int kMaskRows = 128, kMaskColumns = 64, kFirstRow = 256, kLastColumn = 50;

/// The words of a warp, by make(words, number of the warp's first row), against masked(row, column).
template <int kUnits, class Make, class Masked>
void expect_words(const emulator::Launch& launch, const Make& make, const Masked& masked) {
  using Words = FragmentWords<kUnits, kMaskColumns>;
  std::vector<Words> found(128);
  std::vector<int> hides_all(128);
  emulator::run(launch, [&] {
    Words words;
    make(words, static_cast<int>(threadIdx.x / 32) * Words::kRows);
    found[threadIdx.x] = words;
    hides_all[threadIdx.x] = words.hide_all() ? 1 : 0;
  });
  for (int thread = 0; thread < 128; ++thread) {
    bool all = true;
    for (int row = 0; row < Words::kRows; ++row)
      for (int column = 0; column < kMaskColumns; ++column)
        all = all && masked(thread / 32 * Words::kRows + row, column);
    ASSERT_EQ(hides_all[static_cast<std::size_t>(thread)] != 0, all) << thread;
    for (int unit = 0; unit < kUnits; ++unit)
      for (int eight = 0; eight < kMaskColumns / 8; ++eight)
        for (int i = 0; i < 4; ++i) {
          const int row = thread / 32 * Words::kRows + unit * 16 + i / 2 * 8 + thread % 32 / 4;
          const int column = eight * 8 + thread % 4 * 2 + i % 2;
          const auto place = Words::place(unit, eight, i);
          const Words& own = found[static_cast<std::size_t>(thread)];
          ASSERT_EQ((own.words[place.word] >> place.bit & 1) != 0, masked(row, column)) << row << ", " << column;
        }
  }
}

TEST(FragmentWords, SayWhatIntervalsMask) {
  // One range begins before the tile, ends before it or in it; the other ends behind it: its last rows see nothing.
  std::vector<std::int32_t> ends[4];
  for (int column = 0; column < kLastColumn; ++column) {
    const int begin = kFirstRow - 40 + column * 5 % 90, end = begin + column * 11 % 45;
    const int values[4] = {begin, end, kFirstRow + 96 - column % 5, kFirstRow + 128 + column % 3};
    for (int i = 0; i < 4; ++i) ends[i].push_back(values[i]);
  }
  const auto masked = [&](int row, int column) {
    if (column >= kLastColumn) return true;
    const int at = kFirstRow + row;
    const auto in = [&](int range) {
      const auto place = static_cast<std::size_t>(column);
      return ends[2 * range][place] <= at && at < ends[2 * range + 1][place];
    };
    return in(0) || in(1);
  };
  MaskView mask{};
  mask.columns = kLastColumn;
  for (int i = 0; i < 4; ++i) mask.intervals[i] = ends[i].data();
  const emulator::Launch launch{.shared_bytes = sizeof(SharedMask<kMaskRows, kMaskColumns>), .copies = Copies::late};
  const auto make = [&](auto& words, int first_row) {
    auto& shared = shared_memory<SharedMask<kMaskRows, kMaskColumns>>();
    copy_mask<128>(shared, mask, 0, kFirstRow, 0, threadIdx.x);
    commit_copies();
    await_copies<0>();
    __syncthreads();
    words_from_intervals(words, shared, kFirstRow + first_row, 0);
  };
  expect_words<2>(launch, make, masked);
  expect_words<1>(launch, make, masked);
}

TEST(FragmentWords, SayWhatCellsMask) {
  std::vector<std::uint32_t> cells(2 * DeviceBits::kCellWords);
  const auto masked = [](int row, int column) { return row >= 96 || row * column * 5 % 7 < 3; };
  for (int row = 0; row < kMaskRows; ++row)
    for (int column = 0; column < kMaskColumns; ++column) {
      const int byte = column % 8 / 2, bit = column % 32 / 8 * 2 + column % 2;
      if (masked(row, column))
        cells[static_cast<std::size_t>(row / 64 * DeviceBits::kCellWords + column / 32 * 64 + row % 64)] |=
            1U << (byte * 8 + bit);
    }
  MaskView mask{};
  mask.cells = {{cells.data(), nullptr, 2}, 2, 1};
  const emulator::Launch launch{.shared_bytes = sizeof(SharedMask<kMaskRows, kMaskColumns>), .copies = Copies::late};
  const auto make = [&](auto& words, int first_row) {
    auto& shared = shared_memory<SharedMask<kMaskRows, kMaskColumns>>();
    copy_mask<128>(shared, mask, 0, 0, 0, threadIdx.x);
    commit_copies();
    await_copies<0>();
    __syncthreads();
    words_from_cells(words, shared, first_row, 0);
  };
  expect_words<2>(launch, make, masked);
  expect_words<1>(launch, make, masked);
}

TEST(Tanh, IsRightEverywhere) {
  constexpr double kHalfLn2 = 0.34657359027997265;
  for (const float x : {0.0F, 1e-30F, 300.0F, INFINITY})
    for (const float exponent : {x, -x}) {
      const auto expected = static_cast<float>(std::tanh(kHalfLn2 * static_cast<double>(exponent)));
      EXPECT_NEAR(tanh_of_power(exponent), expected, 1e-29) << exponent;
    }
  for (int i = -40000; i <= 40000; ++i) {
    const float exponent = static_cast<float>(i) * 0.00083F;
    const double expected = std::tanh(kHalfLn2 * static_cast<double>(exponent));
    ASSERT_NEAR(tanh_of_power(exponent), expected, 0x1p-21) << exponent;
  }
  EXPECT_TRUE(std::isnan(tanh_of_power(NAN)));
}

}  // namespace
}  // namespace flashmask::cuda::sm80
