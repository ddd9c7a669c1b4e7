// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/device_array.cuh"
#include "cuda/instructions/arithmetic.cuh"
#include "cuda/sm90/instructions/ptx.h"
#include "cuda/sm90/instructions/wgmma.h"

/// One product of 64 × N over 128 k, in each form the kernels take, against sums on the host. Small integers: sums are
/// exact.
namespace flashmask::cuda::sm90 {
namespace {

using check::DeviceArray;

constexpr int kRows = 64, kDepth = 128, kPanelBytes = 128;

/// Where b lies: rows of k (ss), or rows of columns (ss transposed, rs).
enum class Form { shared, transposed, registers };

template <class T>
__device__ T to_element(int value) {
  return static_cast<T>(static_cast<float>(value));
}

__host__ __device__ int a_at(int row, int k) { return (row * 7 + k * 3) % 11 - 5; }
__host__ __device__ int b_at(int k, int column) { return (k * 5 + column * 13) % 9 - 4; }

/// Puts one number where panels of 64 numbers a row, `rows` rows each, hold (row, column), with the 128-byte swizzle.
template <class T>
__device__ void put(std::uint8_t* tile, int rows, int row, int column, T value) {
  const int panel = column / 64, inside = column % 64;
  const int at = panel * rows * kPanelBytes + row * kPanelBytes + ((inside / 8) ^ (row % 8)) * 16 + inside % 8 * 2;
  *reinterpret_cast<T*>(tile + at) = value;
}

template <class T, int kColumns>
__device__ void fill(std::uint8_t* a, std::uint8_t* b, bool transposed) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kRows * kDepth; i += 128)
    put(a, kRows, i / kDepth, i % kDepth, to_element<T>(a_at(i / kDepth, i % kDepth)));
  for (int i = thread; i < kDepth * kColumns; i += 128) {
    const int k = i / kColumns, column = i % kColumns;
    if (transposed)
      put(b, kDepth, k, column, to_element<T>(b_at(k, column)));
    else
      put(b, kColumns, column, k, to_element<T>(b_at(k, column)));
  }
  fence_stores_for_async();
  __syncthreads();
}

/// a as threads hold it in registers: rows `row` and + 8 of it, from column `k` on.
template <class T>
__device__ void take_operand(std::uint32_t (&p)[kDepth / 16][4], int row, int k) {
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at_row = row + i % 2 * 8, at_k = 16 * step + k + i / 2 * 8;
      p[step][i] = pack<T>(static_cast<float>(a_at(at_row, at_k)), static_cast<float>(a_at(at_row, at_k + 1)));
    }
}

/// d = 1 everywhere, then += a b; written as the layout says it lies.
template <class T, int kColumns, Form kForm>
__global__ void multiply(float* out) {
  extern __shared__ std::uint8_t raw[];
  std::uint8_t* a = raw + (1024 - shared_address(raw) % 1024) % 1024;
  std::uint8_t* b = a + kRows * kDepth * 2;
  fill<T, kColumns>(a, b, kForm != Form::shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
  const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  const TileDescriptor of_a(shared_address(a), 16);
  const TileDescriptor of_b(shared_address(b), kForm == Form::shared ? 16 : kDepth * kPanelBytes);
  float d[kColumns / 2];
  for (float& value : d) value = 1;
  std::uint32_t p[kDepth / 16][4];
  take_operand<T>(p, row, column);
  pin(d);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    const int inside = step % 4 * 32;
    const std::uint64_t a_part = of_a.at(step / 4 * kRows * kPanelBytes + inside);
    if constexpr (kForm == Form::shared) {
      Products<T, kColumns>::ss(d, a_part, of_b.at(step / 4 * kColumns * kPanelBytes + inside), 1);
    } else if constexpr (kForm == Form::transposed) {
      Products<T, kColumns>::template ss<1>(d, a_part, of_b.at(step * 16 * kPanelBytes), 1);
    } else {
      Products<T, kColumns>::rs(d, p[step], of_b.at(step * 16 * kPanelBytes), 1);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) out[(row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + column + i % 2] = d[i];
}

/// The first product of a batch may forget what the registers held.
template <class T, int kColumns>
__global__ void overwrite(float* out) {
  extern __shared__ std::uint8_t raw[];
  std::uint8_t* a = raw + (1024 - shared_address(raw) % 1024) % 1024;
  std::uint8_t* b = a + kRows * kDepth * 2;
  fill<T, kColumns>(a, b, false);
  float d[kColumns / 2];
  for (float& value : d) value = NAN;
  pin(d);
  wgmma_fence();
  const TileDescriptor left(shared_address(a), 16), right(shared_address(b), 16);
  Products<T, kColumns>::ss(d, left.at(0), right.at(0), 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(d);
  for (int i = 0; i < kColumns / 2; ++i) out[threadIdx.x * kColumns / 2 + i] = d[i];
}

template <int kColumns>
constexpr int shared_bytes() {
  return 1024 + kRows * kDepth * 2 + kDepth * (kColumns + 32) * 2;
}

template <class T, int kColumns, Form kForm>
void expect_product(const std::string& what) {
  const DeviceArray<float> out(kRows * kColumns);
  constexpr int kBytes = shared_bytes<kColumns>();
  cudaFuncSetAttribute(multiply<T, kColumns, kForm>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  multiply<T, kColumns, kForm><<<1, 128, kBytes>>>(out.data());
  ASSERT_EQ(cudaGetLastError(), cudaSuccess) << what;
  const std::vector<float> product = out.values();
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kColumns; ++column) {
      int sum = 1;
      for (int k = 0; k < kDepth; ++k) sum += a_at(row, k) * b_at(k, column);
      ASSERT_EQ(product[row * kColumns + column], static_cast<float>(sum)) << what << " " << row << ", " << column;
    }
}

template <class T, Form kForm>
void expect_products(const std::string& what) {
  expect_product<T, 64, kForm>(what + ", N = 64");
  expect_product<T, 96, kForm>(what + ", N = 96");
  expect_product<T, 128, kForm>(what + ", N = 128");
  expect_product<T, 192, kForm>(what + ", N = 192");
  expect_product<T, 256, kForm>(what + ", N = 256");
}

TEST(Products, OfTwoTilesInSharedMemory) {
  expect_products<__nv_bfloat16, Form::shared>("bf16");
  expect_products<__half, Form::shared>("f16");
}

TEST(Products, WithTheSecondTileTransposed) {
  expect_products<__nv_bfloat16, Form::transposed>("bf16");
  expect_products<__half, Form::transposed>("f16");
}

TEST(Products, WithTheFirstTileInRegisters) {
  expect_products<__nv_bfloat16, Form::registers>("bf16");
  expect_products<__half, Form::registers>("f16");
}

TEST(Products, ForgetWhatRegistersHeldWhereAskedTo) {
  constexpr int kColumns = 128;
  const DeviceArray<float> out(kRows * kColumns);
  constexpr int kBytes = shared_bytes<kColumns>();
  cudaFuncSetAttribute(overwrite<__half, kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  overwrite<__half, kColumns><<<1, 128, kBytes>>>(out.data());
  for (const float value : out.values()) ASSERT_EQ(value, value);
}

}  // namespace
}  // namespace flashmask::cuda::sm90
