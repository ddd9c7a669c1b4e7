// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the product's file of this name where kernels are compiled for a CPU.

#include <cuda.h>

#include <array>
#include <cstring>
#include <string>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/instructions/mma.h"

namespace flashmask::cuda::sm90 {

inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  emulator::init_counter(shared_address(barrier), arrivals);
}
inline void barrier_init_fence() {}
inline void barrier_arrive(std::uint64_t* barrier) { emulator::arrive_at_counter(shared_address(barrier), 0); }
inline void barrier_arrive_behind(std::uint64_t* barrier, std::uint32_t) { barrier_arrive(barrier); }
inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  emulator::expect_at_counter(shared_address(barrier), bytes);
}
inline void barrier_arrive_expecting(std::uint64_t* barrier, int bytes) {
  emulator::arrive_at_counter(shared_address(barrier), bytes);
}
template <bool kArrivesLater>
void begin_copies(std::uint64_t* barrier, int bytes) {
  if constexpr (kArrivesLater)
    barrier_expect(barrier, bytes);
  else
    barrier_arrive_expecting(barrier, bytes);
}
inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  emulator::await_counter(shared_address(barrier), parity);
}
inline void named_barrier(int id, int threads) {
  emulator::await_threads(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}
inline void named_barrier_arrive(int id, int threads) {
  emulator::arrive_at_threads(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}
inline bool named_barrier_any(int id, int threads, bool of_thread) {
  return emulator::any_of_threads(static_cast<unsigned>(id), static_cast<unsigned>(threads), of_thread);
}
inline void prefetch_tensor_map(const CUtensorMap*) {}

enum class Reads { again, once };

/// Where the copy engine and wgmma put a byte of rows of 128 bytes, with 128-byte swizzle.
inline std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

/// Bytes that a copy will bring: NaN until it does.
inline void spoil(std::uint32_t to, int bytes) {
  constexpr std::uint16_t kNan = 0xFFFF;
  for (int i = 0; i < bytes; i += 2) emulator::write_shared(to + static_cast<std::uint32_t>(i), &kNan, 2);
}

template <Reads = Reads::again>
void copy_box(void* destination, const CUtensorMap* map, std::uint64_t* barrier, int x, int y, int z, int w) {
  const std::uint32_t to = shared_address(destination);
  if (to % 1024 != 0) emulator::refuse("a box is copied to " + std::to_string(to) + ", no multiple of 1024");
  const int bytes = map->rows * 128;
  spoil(to, bytes);
  const auto copy = [=, map = *map] {
    for (int row = 0; row < map.rows; ++row)
      for (int column = 0; column < 64; ++column) {
        const std::uint16_t* const from = map.at(x + column, y, z + row, w);
        const std::uint16_t number = from == nullptr ? 0 : *from;
        emulator::write_shared(swizzled(to + static_cast<std::uint32_t>(row * 128 + column * 2)), &number, 2);
      }
  };
  emulator::copy_later(copy, shared_address(barrier), bytes);
}

inline void prefetch_box(const CUtensorMap*, int, int, int, int) {}
inline void prefetch_bytes(const void*, int) {}

inline void copy_bytes(void* destination, const void* source, int bytes, std::uint64_t* barrier) {
  const std::uint32_t to = shared_address(destination);
  if (to % 16 != 0 || bytes % 16 != 0) emulator::refuse("the copy engine copies multiples of 16 bytes");
  spoil(to, bytes);
  const auto copy = [=] {
    for (int i = 0; i < bytes; i += 16)
      emulator::write_shared(to + static_cast<std::uint32_t>(i), static_cast<const std::byte*>(source) + i, 16);
  };
  emulator::copy_later(copy, shared_address(barrier), bytes);
}

inline void store_bytes(void* destination, const void* source, int bytes) {
  const std::uint32_t from = shared_address(source);
  if (from % 16 != 0 || bytes % 16 != 0) emulator::refuse("the copy engine stores multiples of 16 bytes");
  emulator::ask(emulator::Asked::stores, [=] {
    for (int i = 0; i < bytes; i += 16)
      emulator::read_shared(static_cast<std::byte*>(destination) + i, from + static_cast<std::uint32_t>(i), 16);
  });
}

inline void store_box(const CUtensorMap* map, const void* source, int x, int y, int z, int w) {
  const std::uint32_t from = shared_address(source);
  if (from % 128 != 0) emulator::refuse("a box is stored from " + std::to_string(from) + ", no multiple of 128");
  emulator::ask(emulator::Asked::stores, [=, map = *map] {
    for (int row = 0; row < map.rows; ++row)
      for (int column = 0; column < 64; ++column)
        if (std::uint16_t* const to = map.at(x + column, y, z + row, w); to != nullptr)
          emulator::read_shared(to, swizzled(from + static_cast<std::uint32_t>(row * 128 + column * 2)), 2);
  });
}
inline void commit_stores() { emulator::commit(emulator::Asked::stores); }
inline void await_stores() { emulator::await_asked(emulator::Asked::stores, 0); }
template <int kPending = 0>
void await_stores_read() {
  emulator::await_asked(emulator::Asked::stores, kPending);
}
inline void fence_stores_for_async() {}

/// Number `column` of row `row` of a matrix lies at that place of the transpose where kTransposed says so.
template <bool kTransposed>
void store_four_matrices(std::uint32_t address, const std::uint32_t (&words)[4]) {
  struct Matrices {
    std::uint32_t address;
    std::array<std::uint32_t, 4> words;
  };
  emulator::together(Matrices{address, std::to_array(words)}, [](std::array<Matrices, 32>& all) {
    for (std::uint32_t matrix = 0; matrix < 4; ++matrix)
      for (std::uint32_t row = 0; row < 8; ++row)
        for (std::uint32_t column = 0; column < 8; ++column) {
          const std::uint32_t word = all[4 * row + column / 2].words[matrix];
          const auto number = static_cast<std::uint16_t>(column % 2 != 0 ? word >> 16 : word);
          const std::uint32_t line = kTransposed ? column : row, place = kTransposed ? row : column;
          emulator::write_shared(all[8 * matrix + line].address + 2 * place, &number, 2);
        }
  });
}
inline void store_matrices(std::uint32_t address, const std::uint32_t (&words)[4]) {
  store_four_matrices<false>(address, words);
}
inline void store_matrices_transposed(std::uint32_t address, const std::uint32_t (&words)[4]) {
  store_four_matrices<true>(address, words);
}

inline std::uint32_t transpose_matrix(std::uint32_t word) {
  return emulator::exchange(word, [](int own, const auto& all) {
    const auto number = [&](int row) {
      const int column = own / 4;
      return all[4 * row + column / 2] >> column % 2 * 16 & 0xFFFFU;
    };
    return number(own % 4 * 2) | number(own % 4 * 2 + 1) << 16;
  });
}

inline void fence_loads_for_async() {}
inline int load_acquire(const int* address) { return *address; }
inline void add_to_global(float* address, float a, float b, float c, float d) {
  address[0] += a, address[1] += b, address[2] += c, address[3] += d;
}
inline void discard_line(void* address) { std::memset(address, 0xFF, 128); }

template <int>
void give_registers() {}
template <int>
void take_registers() {}

}  // namespace flashmask::cuda::sm90
