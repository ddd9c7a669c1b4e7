// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm90/instructions/copy_rows.cuh"
#include "cuda/sm90/instructions/wgmma.h"

/// Products of tiles that consumers share; a warpgroup computes 64 rows.
namespace flashmask::cuda::sm90 {

/// s = a bᵀ, over kDim columns of both. `a_address`: where the group's rows of a begin; panels of a and b lie kPanelOfA
/// and kPanelOfB bytes apart. adds: s += a bᵀ.
template <class T, int kDim, int kPanelOfA, int kPanelOfB, int kColumns>
__device__ __forceinline__ void multiply_tiles(float (&s)[kColumns], std::uint32_t a_address,
                                               const std::uint8_t* b_tile, bool adds = false) {
  const TileDescriptor a(a_address, 16), b(shared_address(b_tile), 16);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, inside = step % 4 * 32;
    Products<T, 2 * kColumns>::ss(s, a.at(panel * kPanelOfA + inside), b.at(panel * kPanelOfB + inside),
                                  step > 0 || adds);
  }
  wgmma_commit();
}

/// s = a b, over kDim columns of a and rows of b, whose panels of 64 columns lie kPanelOfB bytes apart.
template <class T, int kDim, int kPanelOfA, int kPanelOfB, int kColumns>
__device__ __forceinline__ void multiply_rows(float (&s)[kColumns], std::uint32_t a_address,
                                              const std::uint8_t* b_tile) {
  const TileDescriptor a(a_address, 16), b(shared_address(b_tile), kPanelOfB);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    Products<T, 2 * kColumns>::template ss<1>(s, a.at(step / 4 * kPanelOfA + step % 4 * 32),
                                              b.at(step * 16 * kPanel * 2), step > 0);
  wgmma_commit();
}

/// d += p b: packed scores times the rows of a tile.
template <class T, int kPanelOfB, int kCount, int kSteps>
__device__ __forceinline__ void multiply_packed(float (&d)[kCount], const std::uint32_t (&p)[kSteps][4],
                                                const std::uint8_t* b_tile) {
  const TileDescriptor b(shared_address(b_tile), kPanelOfB);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) Products<T, 2 * kCount>::rs(d, p[step], b.at(step * 16 * kPanel * 2), 1);
  wgmma_commit();
}

}  // namespace flashmask::cuda::sm90
