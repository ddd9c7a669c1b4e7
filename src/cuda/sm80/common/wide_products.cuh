// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/store_rows.cuh"
#include "cuda/instructions/store_units.cuh"
#include "cuda/sm80/common/wide_shape.cuh"

namespace flashmask::cuda::sm80 {

/// Returns a head's rows without the dims before chunk `chunk`.
template <class Shape>
__device__ __forceinline__ Rows rows_of_chunk(Rows rows, int chunk) {
  rows.first += chunk * Shape::kChunkDims;
  rows.dim -= chunk * Shape::kChunkDims;
  return rows;
}

/// The copies of one chunk: those of the inner side are issued between products; those of the outer side, where it is
/// streamed, before the products.
template <class Shape>
class ChunkCopies {
  using Inner = typename Shape::InnerTile::template Copies<Shape::kThreads, Rows>;

 public:
  static constexpr int kParts = Shape::kChunkDims / 16;  // one per step of a product
  static_assert(kParts == Shape::kInner / 16);

  __device__ __forceinline__ ChunkCopies(std::uint32_t slot, int chunk, const Rows& inner, int first)
      : inner_(slot, rows_of_chunk<Shape>(inner, chunk), first, thread_index()) {}

  static __device__ __forceinline__ void copy_outer(std::uint32_t slot, int chunk, const Rows& outer, int first) {
    Shape::OuterTile::template copy<Shape::kThreads>(slot + Shape::InnerTile::kBytes,
                                                     rows_of_chunk<Shape>(outer, chunk), first, thread_index());
  }

  __device__ __forceinline__ void ask_part(int part) { inner_.template ask_part<kParts>(part); }
  __device__ __forceinline__ void ask_all() { inner_.template ask_rest<0, 1>(); }

 private:
  Inner inner_;
};

/// A warp's work on chunks, whatever its scores are used for: it waits for them, synchronizes with the other warps, and
/// multiplies.
template <class Shape>
class WideProducts {
  using T = typename Shape::Element;
  using OuterTile = typename Shape::OuterTile;
  using InnerTile = typename Shape::InnerTile;
  using WeightTile = typename Shape::WeightTile;
  using Ring = WideRing<Shape>;
  static constexpr int kUnits = Shape::kUnits, kOwnSteps = Shape::kOwnInner / 16, kSteps = Shape::kInner / 16,
                       kPanels = Shape::kOwnDims / 16, kEights = Shape::kOwnDims / 8;

 public:
  using Scores = float[kUnits][Shape::kOwnInner / 8][4];
  using Packed = std::uint32_t[kOwnSteps][kUnits][4];
  using Weights = std::uint32_t[kSteps][kUnits][4];
  using Sums = float[kUnits][Shape::kChunks * kEights][4];

  __device__ __forceinline__ explicit WideProducts(Ring& ring) : ring_(ring), read_(0) {}

  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  static __device__ __forceinline__ int group() { return warp() / Shape::kSharers; }
  static __device__ __forceinline__ int sharer() { return warp() % Shape::kSharers; }
  /// Return the warp's first index on the outer and on the inner side of a tile.
  static __device__ __forceinline__ int own_outer() { return group() * Shape::kOwnOuter; }
  static __device__ __forceinline__ int own_inner() { return sharer() * Shape::kOwnInner; }
  /// Returns the warp's first dim of a chunk.
  static __device__ __forceinline__ int own_dim(int chunk) {
    return chunk * Shape::kChunkDims + sharer() * Shape::kOwnDims;
  }
  static __device__ __forceinline__ int chunks(int dims) { return (dims + Shape::kChunkDims - 1) / Shape::kChunkDims; }

  /// Returns the slot of the very first chunk, whose copies are issued before any others.
  __device__ __forceinline__ std::uint32_t first_slot() const { return slot(0); }

  /// Waits for the next chunk, and until all warps have finished with the one before. next(slot) returns the copies of
  /// the chunk after it, into the slot that the one before was in. product(slot, copies) multiplies, and issues these
  /// copies meanwhile.
  template <class Next, class Product>
  __device__ __forceinline__ void take(const Next& next, const Product& product) {
    await_copies<0>();
    __syncthreads();
    ChunkCopies<Shape> copies = next(slot(Ring::kSlotBytes - read_));
    product(slot(read_), copies);
    commit_copies();
    read_ = Ring::kSlotBytes - read_;
  }

  /// Computes s += outer innerᵀ over the dims of a chunk. `outer`, `inner`: where their chunks lie.
  static __device__ __forceinline__ void add_scores(Scores& s, std::uint32_t outer, std::uint32_t inner,
                                                    ChunkCopies<Shape>& copies) {
    const std::uint32_t a = outer + OuterTile::lane_rows() + OuterTile::step(own_outer(), 0);
    const std::uint32_t b = inner + InnerTile::lane_columns() + InnerTile::step(own_inner(), 0);
#pragma unroll
    for (int panel = 0; panel < Shape::kChunkDims / 16; ++panel) {
      std::uint32_t of_outer[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) load_matrices(of_outer[unit], a + OuterTile::step(16 * unit, panel));
#pragma unroll
      for (int sixteen = 0; sixteen < kOwnSteps; ++sixteen) {
        std::uint32_t of_inner[4];
        load_matrices(of_inner, b + InnerTile::step(16 * sixteen, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(s[unit][2 * sixteen], of_outer[unit], of_inner[0], of_inner[1]);
          multiply<T>(s[unit][2 * sixteen + 1], of_outer[unit], of_inner[2], of_inner[3]);
        }
      }
      copies.ask_part(panel);
    }
  }

  /// Stores the warp's own weights for the warps that share its keys, which may read them after the next barrier. seen:
  /// whether any is nonzero.
  __device__ __forceinline__ void store_weights(const Packed& packed, bool seen) const {
    store_units<WeightTile>(ring_.weights, packed, own_outer(), own_inner());
    if (lane_index() == 0) ring_.seen[warp()] = seen;
  }
  /// Loads the weights of all sharers; returns false where they are all zeros.
  __device__ __forceinline__ bool load_weights(Weights& weights) const {
    const std::uint32_t a = shared_address(ring_.weights) + WeightTile::lane_rows() + WeightTile::step(own_outer(), 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        load_matrices(weights[step][unit], a + WeightTile::step(16 * unit, step));
    bool any = false;
#pragma unroll
    for (int i = 0; i < Shape::kSharers; ++i) any |= ring_.seen[group() * Shape::kSharers + i];
    return any;
  }

  /// Computes sums += weights inner for the warp's dims of the first `count` chunks. next(chunk, slot): take()'s
  /// next(slot) for that chunk.
  template <class Next>
  __device__ __forceinline__ void add_products(Sums& sums, int count, const Next& next) {
    Weights weights;
    bool any = false;
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      if (chunk >= count) break;
      take([&](std::uint32_t slot) { return next(chunk, slot); },
           [&](std::uint32_t inner, ChunkCopies<Shape>& copies) {
             if (chunk == 0) any = load_weights(weights);
             if (any)
               add_products_of(sums, chunk, weights, inner, copies);
             else
               copies.ask_all();
           });
    }
  }

  /// Stores the warp's sums in rows of the outer side, times `factors`: one per unit and half.
  template <class Out>
  static __device__ __forceinline__ void store(const Sums& sums, const float (&factors)[kUnits][2], Out* out,
                                               std::int64_t stride, int first, int rows, int dims) {
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        store_rows(reinterpret_cast<const float(&)[4 * kEights]>(sums[unit][chunk * kEights][0]), factors[unit],
                   out + own_dim(chunk), stride, first + own_outer() + 16 * unit + lane_index() / 4, rows,
                   dims - own_dim(chunk));
  }

 private:
  __device__ __forceinline__ std::uint32_t slot(std::uint32_t offset) const {
    return shared_address(ring_.slots) + offset;
  }

  static __device__ __forceinline__ void add_products_of(Sums& sums, int chunk, const Weights& weights,
                                                         std::uint32_t inner, ChunkCopies<Shape>& copies) {
    const std::uint32_t b = inner + InnerTile::lane_rows() + InnerTile::step(0, sharer() * kPanels);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        std::uint32_t of_inner[4];
        load_matrices_transposed(of_inner, b + InnerTile::step(16 * step, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          float(*const d)[4] = sums[unit] + chunk * kEights + 2 * panel;
          multiply<T>(d[0], weights[step][unit], of_inner[0], of_inner[1]);
          multiply<T>(d[1], weights[step][unit], of_inner[2], of_inner[3]);
        }
      }
      copies.ask_part(step);
    }
  }

  Ring& ring_;
  std::uint32_t read_;  // where the slot of the next chunk begins
};

}  // namespace flashmask::cuda::sm80
