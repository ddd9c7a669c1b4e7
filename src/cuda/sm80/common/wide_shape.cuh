// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/shared_tile.cuh"

namespace flashmask::cuda::sm80 {

/// A shape for heads of up to 512 dims, which are streamed in chunks of dims. A block keeps results of kOuter rows, or
/// of as many keys; tiles have kInner of the other side. There are two groups of four sharers: the warps of a group
/// take the same 32 of the outer side; each of them computes scores with 32 of the inner side, and sums its share of
/// the dims of every chunk.
///
///                   inner 128                                dims of a chunk 128
///             ┌─────┬─────┬─────┬─────┐                    ┌─────┬─────┬─────┬─────┐
///   outer 32  │  0  │  1  │  2  │  3  │ weights, shared ──▶│  0  │  1  │  2  │  3  │ sums of four chunks,
///             └─────┴─────┴─────┴─────┘                    └─────┴─────┴─────┴─────┘ in registers
///
/// kStreamsOuter: chunks of the outer side are streamed with those of the inner; else a block holds it throughout.
template <class T, bool kStreamsOuter_>
struct WideShape {
  using Element = T;
  static constexpr bool kStreamsOuter = kStreamsOuter_;
  static constexpr int kHeadDim = 512, kValueDim = 512, kChunkDims = 128, kChunks = kHeadDim / kChunkDims;
  static constexpr int kOuter = 64, kInner = 128, kUnits = 2, kGroups = kOuter / (16 * kUnits), kSharers = 4;
  static constexpr int kWarps = kGroups * kSharers, kThreads = 32 * kWarps;
  static constexpr int kOwnOuter = 16 * kUnits, kOwnInner = kInner / kSharers, kOwnDims = kChunkDims / kSharers;
  using OuterTile = SharedTile<kOuter, kChunkDims>;
  using InnerTile = SharedTile<kInner, kChunkDims>;
  using WeightTile = SharedTile<kOuter, kInner, false>;
};

/// Buffers for what is streamed: while one chunk is multiplied, the next is being copied.
template <class Shape>
struct WideRing {
  static constexpr int kSlots = 2, kOuterBytes = Shape::kStreamsOuter ? Shape::OuterTile::kBytes : 0,
                       kSlotBytes = Shape::InnerTile::kBytes + kOuterBytes;
  alignas(128) std::uint8_t slots[kSlots][kSlotBytes];  // the inner side, then the outer one
  alignas(128) std::uint8_t weights[Shape::WeightTile::kBytes];
  bool seen[Shape::kWarps];  // whether a warp's weights are not all zeros
};

}  // namespace flashmask::cuda::sm80
