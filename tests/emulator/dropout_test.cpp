// SPDX-License-Identifier: Apache-2.0
#include "flashmask/dropout.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/scores/dropout.cuh"
#include "emulator/host_plan.h"

/// Decisions of dropout as GPUs make them, on the emulator, against those that the library expands.
namespace flashmask::cuda {
namespace {

constexpr int kBatch = 2, kHeads = 3, kRows = 220, kColumns = 206;
constexpr DropoutState kState{0x123456789ABCDEF0, 0xFEDCBA98};

Problem problem_of(double dropout) {
  Problem problem;
  problem.batch = kBatch;
  problem.query_heads = problem.kv_heads = kHeads;
  problem.query_length = kRows;
  problem.key_length = kColumns;
  problem.head_dim = problem.value_dim = 8;
  problem.dropout = dropout;
  return problem;
}

constexpr std::uint64_t kOnDevice[2] = {kState.seed, kState.offset};

/// Of a call that gives the state itself, or where it lies.
DropoutArguments arguments_of(double dropout, const std::uint64_t* on_device,
                              std::span<const std::int32_t> place = {}) {
  const Problem problem = problem_of(dropout);
  return dropout_arguments(problem, {.executor = serial_executor(),
                                     .workers = 1,
                                     .workspace = nullptr,
                                     .dropout = on_device == nullptr ? kState : DropoutState{},
                                     .dropout_place = dropout_tables(problem, place),
                                     .dropout_on_device = on_device});
}

struct Found {
  bool dropped;
  int row, column;  // counted from the warp's first
};

/// Of all scores of a warp, what its lanes find; `row` and `column` as they are in the words' order.
template <class Words, class Find>
std::vector<Found> decisions(const Find& find) {
  std::vector<Found> all;
  emulator::run({.threads = 32}, [&] {
    Words words;
    find(words);
    for (int unit = 0; unit < Words::kUnits; ++unit)
      for (int eight = 0; eight < Words::kColumns / 8; ++eight)
        for (int i = 0; i < 4; ++i) {
          const auto [word, bit] = Words::place(unit, eight, i);
          all.push_back({(words.words[word] >> bit & 1) != 0, 16 * unit + i / 2 * 8 + lane_index() / 4,
                         8 * eight + lane_index() % 4 * 2 + i % 2});
        }
  });
  return all;
}

/// Both layouts, at some places of some heads.
template <int kUnits, int kWide>
void expect_the_librarys(double dropout, const std::uint64_t* on_device = nullptr,
                         std::span<const std::int32_t> place = {}) {
  using Words = DroppedWords<kUnits, kWide>;
  const Problem problem = problem_of(dropout);
  const DropoutArguments arguments = arguments_of(dropout, on_device, place);
  const int batch = 1;
  for (int head = 0; head < kHeads; head += 2)
    for (const int first : {0, 72}) {
      const int row = first + 16;
      const auto kept = [&](int at_row, int at_column) {
        return expand_dropout(problem, kState, batch, head, at_row, place)[static_cast<std::size_t>(at_column)] != 0;
      };
      for (const Found& of :
           decisions<Words>([&](Words& words) { find_dropped(words, arguments, batch, head, row, first); }))
        ASSERT_NE(of.dropped, kept(row + of.row, first + of.column)) << of.row << ", " << of.column;
      for (const Found& of :
           decisions<Words>([&](Words& words) { find_dropped_transposed(words, arguments, batch, head, first, row); }))
        ASSERT_NE(of.dropped, kept(row + of.column, first + of.row)) << of.column << ", " << of.row;
    }
}

TEST(EmulatedDropout, DecidesAsTheLibraryDoes) {
  for (const double dropout : {1.0 / 65536, 0.1, 0.5, 0.9}) {
    SCOPED_TRACE(dropout);
    expect_the_librarys<1, 32>(dropout);
    expect_the_librarys<1, 64>(dropout);
    expect_the_librarys<1, 96>(dropout);
    expect_the_librarys<1, 128>(dropout);
    expect_the_librarys<2, 16>(dropout);
    expect_the_librarys<2, 32>(dropout);
    expect_the_librarys<2, 64>(dropout);
  }
}

TEST(EmulatedDropout, ReadsSeedAndOffsetWhereTheyLie) { expect_the_librarys<1, 64>(0.5, kOnDevice); }

TEST(EmulatedDropout, DecidesForAPartAsForTheWhole) {
  const std::vector<std::int32_t> place = emulator::some_dropout_place(problem_of(0.5), 1024);
  expect_the_librarys<1, 32>(0.5, nullptr, place);
  expect_the_librarys<1, 128>(0.5, nullptr, place);
  expect_the_librarys<2, 16>(0.5, nullptr, place);
  expect_the_librarys<2, 64>(0.5, kOnDevice, place);
}

TEST(EmulatedDropout, DropsNumbersBelowTheThreshold) {
  for (const std::uint32_t threshold : {1U, 6554U, 32767U, 32768U, 40000U, 65535U}) {
    const std::uint32_t addend = arguments_of(threshold / 65536.0, nullptr).addend;
    for (std::uint32_t low = 0; low < 65536; ++low) {
      const std::uint32_t high = low * 40503 & 0xFFFF;  // every number once as well
      const auto numbers = std::bit_cast<DropoutNumbers>(std::array<std::uint32_t, 4>{0, 0, low | high << 16, 0});
      const std::uint32_t dropped = numbers.dropped(2, addend);
      ASSERT_EQ(dropped >> 15 & 1, low < threshold ? 1 : 0) << low << " below " << threshold;
      ASSERT_EQ(dropped >> 31, high < threshold ? 1 : 0) << high << " below " << threshold;
    }
  }
}

TEST(EmulatedDropout, TakesAwayWhatItSays) {
  DroppedWords<1, 32> words{};
  const auto [word, bit] = DroppedWords<1, 32>::place(0, 3, 2);
  words.words[word] = 1U << bit;
  float s[1][4][4];
  for (int i = 0; i < 16; ++i) s[0][i / 4][i % 4] = 1;
  drop(s, words);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(s[0][i / 4][i % 4], i == 14 ? 0 : 1) << i;
}

}  // namespace
}  // namespace flashmask::cuda
