// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/instructions/mma.h"
#include "kit/rounding.h"

/// What each instruction of cuda/instructions/mma.h gives, for a warp of a GPU and for the emulator's.
namespace flashmask::cuda {

/// Of a lane.
struct InstructionResults {
  std::uint32_t rows[4], columns[4];  // of load_matrices() and load_matrices_transposed()
  std::uint32_t loaded[2][4];         // by load_16(), of which the second is zeros
  std::uint32_t transposed;           // of matrix 0, by transpose_matrix()
  float product[4], half_product[4];
  std::uint32_t copied[2][4];   // by copy_16(), of which the second is zeros
  std::uint32_t two[2], small;  // by copy_8() and copy_4()
  std::uint32_t bits[3];        // of bits_from()
};

struct InstructionMemory {
  alignas(16) std::uint16_t matrices[32][8];  // matrix m is rows 8 m … 8 m + 7
  alignas(16) std::uint32_t copied[2][32][4];
  alignas(8) std::uint32_t two[32][2];
  std::uint32_t small[32];
};

__host__ __device__ constexpr std::uint16_t matrix_number(int row, int column) {
  return static_cast<std::uint16_t>(row * 8 + column);
}

/// A small whole number as bfloat16 or float16.
template <class T>
__device__ std::uint32_t pair_of(int low, int high) {
  return pack<T>(static_cast<float>(low), static_cast<float>(high));
}

/// a[i][k] = i − 2 k, b[k][j] = k + 3 j, d[i][j] = 100 before; lane 4 g + q.
template <class T>
__device__ void multiply_numbers(float (&d)[4], int g, int q) {
  std::uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    const int row = g + i % 2 * 8, column = 2 * q + i / 2 * 8;
    a[i] = pair_of<T>(row - 2 * column, row - 2 * column - 2);
  }
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * q + i * 8;
    b[i] = pair_of<T>(row + 3 * g, row + 1 + 3 * g);
  }
  for (float& x : d) x = 100;
  multiply<T>(d, a, b[0], b[1]);
}

/// `given`: 16-byte aligned, 32 · 4 words; `sums`: 5 numbers that all lanes add to.
__device__ inline void run_instructions(InstructionResults* results, const std::uint32_t* given, float* sums) {
  auto& shared = shared_memory<InstructionMemory>();
  const int lane = lane_index();
  InstructionResults own;
  for (int column = 0; column < 8; ++column) shared.matrices[lane][column] = matrix_number(lane, column);
  __syncthreads();
  load_matrices(own.rows, shared_address(shared.matrices[lane]));
  load_matrices_transposed(own.columns, shared_address(shared.matrices[lane]));
  own.transposed = transpose_matrix(own.rows[0]);
  multiply_numbers<__nv_bfloat16>(own.product, lane / 4, lane % 4);
  multiply_numbers<__half>(own.half_product, lane / 4, lane % 4);
  for (int i = 0; i < 2; ++i) load_16(own.loaded[i], given + 4 * lane, i == 0);
  copy_16(shared_address(shared.copied[0][lane]), given + 4 * lane, true);
  commit_copies();
  copy_16(shared_address(shared.copied[1][lane]), given + 4 * lane, false);
  copy_8(shared_address(shared.two[lane]), given + 4 * lane + 2);
  copy_4(shared_address(&shared.small[lane]), given + 4 * lane + 1);
  commit_copies();
  await_copies<0>();
  __syncthreads();
  for (int i = 0; i < 8; ++i) own.copied[i / 4][i % 4] = shared.copied[i / 4][lane ^ 1][i % 4];
  for (int i = 0; i < 2; ++i) own.two[i] = shared.two[lane ^ 1][i];
  own.small = shared.small[lane ^ 1];
  own.bits[0] = bits_from(lane, 3);
  own.bits[1] = bits_from(40, 3);
  own.bits[2] = bits_from(0, lane);
  add_to_global(sums, static_cast<float>(lane));
  add_to_global(sums + 4, 1, 2, 3, static_cast<float>(lane));
  results[lane] = own;
}

inline std::vector<std::uint32_t> given_words() {
  std::vector<std::uint32_t> words(32 * 4);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(1000 + i);
  return words;
}

inline void expect_instructions(const std::vector<InstructionResults>& results, const std::vector<float>& sums) {
  const auto pair = [](int low_row, int low_column, int high_row, int high_column) {
    return matrix_number(low_row, low_column) | static_cast<std::uint32_t>(matrix_number(high_row, high_column)) << 16;
  };
  for (int lane = 0; lane < 32; ++lane) {
    SCOPED_TRACE(lane);
    const InstructionResults& own = results[static_cast<std::size_t>(lane)];
    const int g = lane / 4, q = lane % 4, other = lane ^ 1;
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(own.rows[i], pair(8 * i + g, 2 * q, 8 * i + g, 2 * q + 1));
      EXPECT_EQ(own.columns[i], pair(8 * i + 2 * q, g, 8 * i + 2 * q + 1, g));
      float expected = 100;
      for (int k = 0; k < 16; ++k) expected += static_cast<float>((g + i / 2 * 8 - 2 * k) * (k + 3 * (2 * q + i % 2)));
      EXPECT_EQ(own.product[i], expected);
      EXPECT_EQ(own.half_product[i], expected);
      EXPECT_EQ(own.loaded[0][i], static_cast<std::uint32_t>(1000 + 4 * lane + i));
      EXPECT_EQ(own.loaded[1][i], 0U);
      EXPECT_EQ(own.copied[0][i], static_cast<std::uint32_t>(1000 + 4 * other + i));
      EXPECT_EQ(own.copied[1][i], 0U);
    }
    EXPECT_EQ(own.transposed, own.columns[0]);
    for (unsigned i = 0; i < 2; ++i) EXPECT_EQ(own.two[i], 1002 + 4 * static_cast<std::uint32_t>(other) + i);
    EXPECT_EQ(own.small, static_cast<std::uint32_t>(1001 + 4 * other));
    EXPECT_EQ(own.bits[0], static_cast<std::uint32_t>(std::uint64_t{7} << lane));
    EXPECT_EQ(own.bits[1], 0U);
    EXPECT_EQ(own.bits[2], static_cast<std::uint32_t>((std::uint64_t{1} << lane) - 1));
  }
  EXPECT_EQ(sums, (std::vector<float>{496, 0, 0, 0, 32, 64, 96, 496}));
}

}  // namespace flashmask::cuda
