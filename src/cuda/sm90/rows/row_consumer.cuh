// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/dropout.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm90/instructions/tile_products.cuh"
#include "cuda/sm90/rows/bias_reader.cuh"

namespace flashmask::cuda::sm90 {

/// Base of the warpgroups that compute row tiles. A warpgroup has 64 rows of each row tile; a thread holds parts of two
/// of them, and a quad of threads holds whole ones. Provides products of tiles, bits of partial tiles, row numbers and
/// dropout decisions.
template <class Shape>
class RowConsumer {
 protected:
  using T = typename Shape::Element;
  static constexpr int kScores = Shape::kColumns / 2;
  static constexpr int kSteps = Shape::kColumns / 16;
  using Dropped = DroppedWords<1, Shape::kColumns>;

  __device__ __forceinline__ explicit RowConsumer(RowMemory<Shape>& shared)
      : shared_(shared),
        group_(__shfl_sync(~0U, threadIdx.x / 128, 0) - 1),  // so that the compiler knows it to be uniform
        row_(group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) {}

  static __device__ __forceinline__ int lane() { return lane_index(); }
  /// Returns the warp's number among those that compute.
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / 32) - 4; }
  /// Returns the warp's first row.
  static __device__ __forceinline__ int first_row(const RowTile& tile) {
    return tile.row_tile * Shape::kRows + warp() * 16;
  }

  __device__ __forceinline__ void release(std::uint64_t* barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

  /// s = rows columnsᵀ, for the group's rows of a tile of the query side and for a tile of the key side.
  template <int kDim>
  __device__ __forceinline__ void multiply_by_keys(float (&s)[kScores], const std::uint8_t* rows,
                                                   const std::uint8_t* columns) {
    multiply_tiles<T, kDim, Shape::kRows * kPanel * 2, Shape::kColumns * kPanel * 2>(
        s, shared_address(rows) + group_ * 64 * kPanel * 2, columns);
  }

  /// d += p columns, for packed scores and a tile of the key side.
  template <int kDim>
  __device__ __forceinline__ void multiply_scores(float (&d)[kDim / 2], const std::uint32_t (&p)[kSteps][4],
                                                  const std::uint8_t* columns) {
    multiply_packed<T, Shape::kColumns * kPanel * 2>(d, p, columns);
  }

  /// Reads the mask bits of the thread's two rows of a partial tile. Returns true where the shape skips hidden tiles
  /// and none of the group's rows sees anything of this one.
  __device__ __forceinline__ bool take_bits(std::uint32_t (&masked)[RowWords::kWords]) {
    barrier_wait(&shared_.bits_full[bits_.slot], bits_.phase);
    const FragmentBits<Shape::kRows>& bits = shared_.bits[bits_.slot];
    const std::uint32_t* words = bits.words + lane() % 4 * FragmentBits<Shape::kRows>::kPitch + row_;
    masked[0] = words[0];
    masked[1] = words[8];
    bool hidden = false;
    if constexpr (Shape::kSkipsHidden) hidden = __shfl_sync(~0U, bits.hidden, 0) >> group_ & 1;
    release(&shared_.bits_empty[bits_.slot]);
    bits_.advance();
    return hidden;
  }

  __device__ __forceinline__ void begin_tile(const Work& work, const DropoutArguments& dropout) {
    if constexpr (!kLocatesScores<Shape>) return;
    if (lane() == 0) shared_.taken[warp()] = work;
    if constexpr (kStoresSeed<Shape>) {
      const RowTile& tile = work.tile;
      const DropoutSeed seed(dropout, tile.batch, tile.head);
      if (lane() == 0) shared_.seeds[warp()].store(seed, dropout, first_row(tile));
    }
    __syncwarp();
  }
  __device__ __forceinline__ Work kept(const Work& work) const {
    if constexpr (!kLocatesScores<Shape>) return work;
    return shared_.taken[warp()];
  }

  /// Finds the slope of a tile's head and the marks of the thread's two rows; the origin is the position of the tile's
  /// first row.
  __device__ __forceinline__ void find_row_marks(RowNumbers<1>& marks, float& slope, const Work& work,
                                                 const AlibiArguments& alibi) const {
    if constexpr (!Biases<Shape>) return;
    slope = slope_of(alibi, work.tile.batch, work.tile.head);
    const float origin = query_position(alibi, work.tile.batch, work.rows.first);
#pragma unroll
    for (int row = 0; row < 2; ++row)
      marks.numbers[0][row] =
          slope * (query_position(alibi, work.tile.batch, work.rows.first + row_ + 8 * row) - origin);
  }

  /// Starts to fetch what add_bias() reads for the tile in the current buffer of K. Called ahead of its product.
  __device__ __forceinline__ void fetch_bias(const BiasArguments& bias, const BiasReader<Shape>& panels) const {
    if constexpr (AddsBias<Shape>) {
      if (!panels.exists() && !shares_entries(bias))
        BiasValues<1, Shape::kColumns / 8, PlaceByRows>(bias, place_of_scores()).prefetch();
    }
  }

  /// Turns the products of that tile into powers of two with the values of a bias tensor (add_bias() of
  /// change_scores.cuh). Scales the sums, since the loop over parts has no register for a second factor, and in each
  /// branch, which takes one less. kAgain: the tile's panels have been read, and their slots given back.
  template <bool kAgain>
  __device__ __forceinline__ void add_bias(float (&s)[kScores], const BiasArguments& bias,
                                           BiasReader<Shape>& panels) const {
    if constexpr (AddsBias<Shape>) {
      if (!kAgain && panels.exists()) {
        panels.add_next(s, shared_, keys_.slot, group_, warp() * 16, bias.to_products);
        scale_scores(s, bias.product_log2);
      } else if (shares_entries(bias)) {
        shared_.near[keys_.slot].add_to(as_unit(s), row_);
        scale_scores(s, bias.product_log2);
      } else {
        BiasParts<Shape::kColumns / 8, PlaceByRows>(bias, place_of_scores()).add_to(as_unit(s));
        scale_scores(s, bias.product_log2);
      }
    }
  }

  static __device__ __forceinline__ void scale_scores(float (&s)[kScores], const float& factor) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= factor;
  }

  __device__ __forceinline__ PlaceByRows place_of_scores() const {
    const Work& work = shared_.taken[warp()];
    return {work.tile.batch, work.tile.head, work.rows.first + warp() * 16, shared_.first_keys[keys_.slot]};
  }

  /// Finds which of the thread's scores dropout drops in the tile in the current buffer of K. Called while products
  /// run. The waits at the barrier pass at once: their branches keep the compiler from moving the draws in between the
  /// products' instructions, where they would hold up the other groups' products, or past the wait for the products.
  __device__ __forceinline__ void find_dropped(Dropped& dropped, const DropoutArguments& dropout) const {
    if constexpr (!Drops<Shape>) return;
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
    const RowTile& tile = shared_.taken[warp()].tile;
    const int first_column = shared_.column_tiles[keys_.slot] * Shape::kColumns;
    if constexpr (kStoresSeed<Shape>)
      cuda::find_dropped(dropped, dropout, shared_.seeds[warp()], first_row(tile), first_column);
    else
      cuda::find_dropped(dropped, dropout, tile.batch, tile.head, first_row(tile), first_column);
    barrier_wait(&shared_.k_full[keys_.slot], keys_.phase);
  }

  RowMemory<Shape>& shared_;
  int group_;
  int row_;  // the thread's first row in the row tile; its second is 8 further on
  RingPosition<kWorkSlots> work_;
  RingPosition<Shape::kBitSlots> bits_;
  RingPosition<Shape::kQueryStages> queries_;
  RingPosition<Shape::kKeyStages> keys_;
  RingPosition<Shape::kValueStages> values_;
};

}  // namespace flashmask::cuda::sm90
