// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the product's file of this name where kernels are compiled for a CPU.

#include <array>

#include "cuda/instructions/arithmetic.cuh"

namespace flashmask::cuda {

template <class T>
void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Operands {
    std::array<float, 4> d;
    std::array<std::uint32_t, 4> a;
    std::array<std::uint32_t, 2> b;
  };
  const Operands own{std::to_array(d), std::to_array(a), {b0, b1}};
  const auto product = emulator::together(own, [](std::array<Operands, 32>& all) {
    float a_rows[16][16], b_rows[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4;
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<T>(all[lane].a[i]);
        a_rows[g + i % 2 * 8][2 * q + i / 2 * 8] = pair.x;
        a_rows[g + i % 2 * 8][2 * q + i / 2 * 8 + 1] = pair.y;
      }
      for (int i = 0; i < 2; ++i) {
        const float2 pair = unpack<T>(all[lane].b[i]);
        b_rows[2 * q + i * 8][g] = pair.x;
        b_rows[2 * q + i * 8 + 1][g] = pair.y;
      }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
          all[lane].d[i] += a_rows[lane / 4 + i / 2 * 8][k] * b_rows[k][lane % 4 * 2 + i % 2];
  });
  for (int i = 0; i < 4; ++i) d[i] = product.d[i];
}

template <class T>
void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, bool first) {
  if (first) d[0] = d[1] = d[2] = d[3] = 0;
  multiply<T>(d, a, b0, b1);
}

template <bool kTransposed>
void load_matrices(std::uint32_t (&words)[4], std::uint32_t address) {
  struct Matrices {
    std::uint32_t address;
    std::array<std::uint32_t, 4> words;
  };
  const auto loaded = emulator::together(Matrices{address, {}}, [](std::array<Matrices, 32>& all) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t numbers[8][8];
      for (int row = 0; row < 8; ++row) emulator::read_shared(numbers[row], all[matrix * 8 + row].address, 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, q = lane % 4;
        const std::uint16_t low = kTransposed ? numbers[2 * q][g] : numbers[g][2 * q];
        const std::uint16_t high = kTransposed ? numbers[2 * q + 1][g] : numbers[g][2 * q + 1];
        all[lane].words[matrix] = low | static_cast<std::uint32_t>(high) << 16;
      }
    }
  });
  for (int i = 0; i < 4; ++i) words[i] = loaded.words[i];
}

inline void load_matrices(std::uint32_t (&words)[4], std::uint32_t address) { load_matrices<false>(words, address); }
inline void load_matrices_transposed(std::uint32_t (&words)[4], std::uint32_t address) {
  load_matrices<true>(words, address);
}

inline void load_16(std::uint32_t (&words)[4], const void* from, bool exists) {
  const uint4 loaded = exists ? *static_cast<const uint4*>(from) : uint4{};
  words[0] = loaded.x;
  words[1] = loaded.y;
  words[2] = loaded.z;
  words[3] = loaded.w;
}

inline std::uint32_t transpose_matrix(std::uint32_t word) {
  return emulator::together(word, [](std::array<std::uint32_t, 32>& all) {
    std::uint16_t numbers[8][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 2; ++i) numbers[lane / 4][lane % 4 * 2 + i] = static_cast<std::uint16_t>(all[lane] >> 16 * i);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4;
      all[lane] = numbers[2 * q][g] | static_cast<std::uint32_t>(numbers[2 * q + 1][g]) << 16;
    }
  });
}

inline void copy_16(std::uint32_t to, const void* from, bool exists) {
  emulator::copy(to, exists ? from : nullptr, 16);
}
inline void copy_8(std::uint32_t to, const void* from) { emulator::copy(to, from, 8); }
inline void copy_4(std::uint32_t to, const void* from) { emulator::copy(to, from, 4); }
inline void commit_copies() { emulator::commit_copies(); }
template <int kPending>
void await_copies() {
  emulator::await_copies(kPending);
}

inline void sync_threads(int barrier, int threads) {
  emulator::await_threads(static_cast<unsigned>(barrier), static_cast<unsigned>(threads));
}

inline void add_to_global(float* address, float x) { *address += x; }
inline void add_to_global(float* address, float a, float b, float c, float d) {
  address[0] += a;
  address[1] += b;
  address[2] += c;
  address[3] += d;
}

}  // namespace flashmask::cuda
