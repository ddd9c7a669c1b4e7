// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for the product's file of this name where kernels are compiled for a CPU.

#include <memory>
#include <utility>

#include "cuda/sm90/instructions/ptx.h"

namespace flashmask::cuda::sm90 {

inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::commit(emulator::Asked::products); }
/// The lanes of a warp wait together: whichever is first does the products of all.
template <int kPending>
void wgmma_wait() {
  __syncwarp();
  emulator::await_asked(emulator::Asked::products, kPending);
  __syncwarp();
}

template <int kCount>
void pin(float (&)[kCount]) {}

class TileDescriptor {
 public:
  TileDescriptor(std::uint32_t address, std::uint32_t leading_bytes) : address_(address), leading_(leading_bytes) {}
  std::uint64_t at(std::uint32_t bytes) const { return std::uint64_t{leading_} << 32 | (address_ + bytes); }

 private:
  std::uint32_t address_, leading_;
};

template <class T, int kColumns>
struct Products {
  using Results = float[kColumns / 2];

  template <int kTransposed = 0>
  static void ss(Results& d, std::uint64_t a, std::uint64_t b, int add) {
    issue({d, {}}, {a, b, add != 0, false, kTransposed != 0});
  }
  static void rs(Results& d, const std::uint32_t (&a)[4], std::uint64_t b, int add) {
    issue({d, std::to_array(a)}, {0, b, add != 0, true, true});
  }

 private:
  struct Own {
    float* d;
    std::array<std::uint32_t, 4> a;
  };
  struct Product {
    std::uint64_t a, b;
    bool adds, a_in_registers, b_has_columns;
  };
  struct Batch {
    std::array<Own, 32> lanes;
    bool done = false;
  };

  static float number_at(std::uint32_t address) {
    std::uint16_t word = 0;
    emulator::read_shared(&word, swizzled(address), 2);
    return from_word<T>(word);
  }

  static void compute(const Batch& batch, const Product& product, std::uint32_t warp) {
    float a[16][16], b[kColumns][16];
    const auto start = [](std::uint64_t tile) { return static_cast<std::uint32_t>(tile); };
    const auto leading = static_cast<std::uint32_t>(product.b >> 32);
    for (std::uint32_t row = 0; row < 16; ++row)
      for (std::uint32_t k = 0; k < 16; ++k) {
        const float2 pair = unpack<T>(batch.lanes[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2]);
        a[row][k] = product.a_in_registers ? (k % 2 != 0 ? pair.y : pair.x)
                                           : number_at(start(product.a) + (16 * warp + row) * 128 + 2 * k);
      }
    for (std::uint32_t n = 0; n < kColumns; ++n)
      for (std::uint32_t k = 0; k < 16; ++k)
        b[n][k] = number_at(start(product.b) +
                            (product.b_has_columns ? n / 64 * leading + k * 128 + n % 64 * 2 : n * 128 + 2 * k));
    for (std::uint32_t row = 0; row < 16; ++row)
      for (std::uint32_t n = 0; n < kColumns; ++n) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[n][k];
        float& d = batch.lanes[row % 8 * 4 + n % 8 / 2].d[n / 8 * 4 + row / 8 * 2 + n % 2];
        d = product.adds ? d + sum : sum;
      }
  }

  static void issue(const Own& own, const Product& product) {
    struct Given {
      Own own;
      std::shared_ptr<Batch> batch;
    };
    const auto batch = emulator::together(Given{own, nullptr}, [](std::array<Given, 32>& lanes) {
                         const auto shared = std::make_shared<Batch>();
                         for (std::size_t i = 0; i < 32; ++i) shared->lanes[i] = lanes[i].own;
                         for (Given& lane : lanes) lane.batch = shared;
                       }).batch;
    const std::uint32_t warp = threadIdx.x / 32 % 4;
    emulator::ask(emulator::Asked::products, [batch, product, warp] {
      if (!std::exchange(batch->done, true)) compute(*batch, product, warp);
    });
  }
};

}  // namespace flashmask::cuda::sm90
