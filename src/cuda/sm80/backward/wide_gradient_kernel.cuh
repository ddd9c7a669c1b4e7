// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/common/copy_mask.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/sm80/backward/key_words.cuh"
#include "cuda/sm80/backward/wide_gradient_arguments.h"
#include "cuda/sm80/common/tile_steps.cuh"
#include "cuda/sm80/common/wide_products.cuh"

namespace flashmask::cuda::sm80 {

template <class T, GradientOf kOf_>
struct WideGradientShape : WideShape<T, true> {
  using Base = WideShape<T, true>;
  static constexpr GradientOf kOf = kOf_;
  static constexpr bool kByKeys = kOf != GradientOf::queries;
  static constexpr int kRows = kByKeys ? Base::kInner : Base::kOuter, kColumns = kByKeys ? Base::kOuter : Base::kInner;
  static constexpr MapSide kSide = kByKeys ? MapSide::columns : MapSide::rows;
  static constexpr int kStatistics = kByKeys ? Base::kInner : Base::kOuter;  // rows whose statistics a block holds
};

template <class Shape>
struct WideGradientMemory {
  struct Item {
    int batch, head, tile;  // head and tile of the outer side
  };
  WideRing<Shape> ring;
  alignas(16) float lse_log2[Shape::kStatistics];
  alignas(16) float dot[Shape::kStatistics];
  SharedMask<64, 128> mask;  // where rows are the outer side
  Item item;
  TileSteps steps;
};

/// One of the three gradients, for wide heads: each launch recomputes the scores, and sums what one block has registers
/// for, in a fixed order.
template <class Shape>
class WideGradientBlock {
  using T = typename Shape::Element;
  using Products = WideProducts<Shape>;
  using Scores = typename Products::Scores;
  using Sums = typename Products::Sums;
  using Words = FragmentWords<Shape::kUnits, Shape::kOwnInner>;
  using Copies = ChunkCopies<Shape>;
  static constexpr bool kByKeys = Shape::kByKeys;
  static constexpr int kUnits = Shape::kUnits;
  using Rows = std::conditional_t<kByKeys, TransposedRowNumbers<Shape::kOwnInner / 8>, RowNumbers<kUnits>>;
  using Place = std::conditional_t<kByKeys, TransposedPlace, PlaceByRows>;
  enum class Product { scores, probability_gradients, sums };

 public:
  __device__ __forceinline__ WideGradientBlock(WideGradientMemory<Shape>& shared,
                                               const WideGradientArguments& arguments)
      : shared_(shared), arguments_(arguments), products_(shared.ring) {}

  __device__ __forceinline__ void run() {
    const auto own = item();
    if (thread_index() == 0) shared_.item = own;
    shared_.steps.template begin<Shape::kWarps>(lists_of(own), [] {});
    shared_.steps.extend(lists_of(own), 0);
    __syncthreads();
    Sums sums = {};
    if (shared_.steps[0].exists()) attend(sums);
    if (arguments_.float32_gradient)
      store<float>(sums);
    else
      store<T>(sums);
  }

 private:
  /// Returns the block's item. The last row tiles come first: with causal masks they take longest.
  __device__ __forceinline__ typename WideGradientMemory<Shape>::Item item() const {
    const Sections& outer = arguments_.outer;
    const SectionTile tile = outer.tile(static_cast<int>(blockIdx.x));
    return {tile.head / arguments_.outer_heads, tile.head % arguments_.outer_heads,
            kByKeys ? tile.tile : outer.tiles - 1 - tile.tile};
  }

  __device__ __forceinline__ int batch() const { return shared_.item.batch; }
  __device__ __forceinline__ int first_query_head(int head) const {
    return kByKeys ? head * arguments_.head_ratio : head;
  }
  __device__ __forceinline__ int query_head(const TileStep& step) const {
    return first_query_head(shared_.item.head) + step.head();
  }
  __device__ __forceinline__ int first_outer() const { return shared_.item.tile * Shape::kOuter; }
  static __device__ __forceinline__ int first_inner(const TileStep& step) {
    return step.exists() ? step.tile * Shape::kInner : -1;
  }
  /// Returns the mask's list for the step's head, as TileList finds it.
  __device__ __forceinline__ int list_of(const TileStep& step) const {
    const TileMapView& map = arguments_.map;
    return (map.batch == 1 ? 0 : batch()) * map.heads + query_head(step) / map.head_ratio;
  }

  /// Full tiles need no mask where keys are the outer side: what they compute for keys past the last stays in rows of
  /// sums that are never stored.
  __device__ __forceinline__ TileLists lists_of(const typename WideGradientMemory<Shape>::Item& item) const {
    return {arguments_.map, item.batch, first_query_head(item.head), kByKeys ? arguments_.head_ratio : 1,
            item.tile,      false};
  }

  __device__ __forceinline__ void attend(Sums& sums) {
    const TileStep first = shared_.steps[0];
    if constexpr (!kByKeys) copy_statistics(first, first_outer());
    copies_of<Product::scores>(0, first, products_.first_slot()).ask_all();
    copy_for_tile(first);
    commit_copies();
#pragma unroll 1
    for (int i = 0; shared_.steps[i].exists(); ++i) {
      shared_.steps.extend(lists_of(shared_.item), i + 1);
      visit(sums, shared_.steps[i], shared_.steps[i + 1]);
    }
  }

  // Streamed chunks.

  /// Return the tensors of a product's inner and outer side; the product `sums` has the inner one alone.
  template <Product kProduct>
  __device__ __forceinline__ const TensorRows& inner() const {
    const WideGradientArguments& from = arguments_;
    if constexpr (kProduct == Product::scores) return kByKeys ? from.q : from.k;
    if constexpr (kProduct == Product::probability_gradients) return kByKeys ? from.grad_o : from.v;
    return Shape::kOf == GradientOf::queries ? from.k : Shape::kOf == GradientOf::keys ? from.q : from.grad_o;
  }
  template <Product kProduct>
  __device__ __forceinline__ const TensorRows& outer() const {
    if constexpr (kProduct == Product::scores) return kByKeys ? arguments_.k : arguments_.q;
    return kByKeys ? arguments_.v : arguments_.grad_o;
  }

  /// Issues the copies of a chunk of the outer side, unless the product is `sums`, and returns those of the inner side.
  /// Past the last step: zeros, never read.
  template <Product kProduct>
  __device__ __forceinline__ Copies copies_of(int chunk, const TileStep& step, std::uint32_t slot) const {
    const int row_head = query_head(step), key_head = row_head / arguments_.head_ratio;
    if constexpr (kProduct != Product::sums)
      Copies::copy_outer(slot, chunk, outer<kProduct>().of(batch(), kByKeys ? key_head : row_head), first_outer());
    return Copies(slot, chunk, inner<kProduct>().of(batch(), kByKeys ? row_head : key_head), first_inner(step));
  }

  /// Issues the copies of what a tile needs besides the chunks of its products.
  __device__ __forceinline__ void copy_for_tile(const TileStep& step) {
    if constexpr (kByKeys) {
      if (step.exists()) copy_statistics(step, first_inner(step));
    } else if (step.masked()) {
      copy_mask<Shape::kThreads>(shared_.mask, arguments_.mask, list_of(step), first_outer(), first_inner(step),
                                 thread_index());
    }
  }

  __device__ __forceinline__ void copy_statistics(const TileStep& step, int first_row) {
    const BackwardStatistics& from = arguments_.statistics;
    constexpr int kPieces = Shape::kStatistics / 4;
    const int thread = static_cast<int>(thread_index()), piece = thread % kPieces * 4;
    const std::int64_t head = static_cast<std::int64_t>(batch()) * arguments_.query_heads + query_head(step);
    const std::int64_t at = head * from.padded + first_row + piece;
    if (thread < kPieces)
      copy_16(shared_address(shared_.lse_log2 + piece), from.lse_log2 + at, true);
    else if (thread < 2 * kPieces)
      copy_16(shared_address(shared_.dot + piece), from.dot + at, true);
  }

  // A tile.

  __device__ __forceinline__ void visit(Sums& sums, const TileStep& now, const TileStep& next) {
    constexpr bool kValues = Shape::kOf == GradientOf::values;
    const int first_row = kByKeys ? Products::own_inner() : Products::own_outer();
    KeyMask<kUnits, Shape::kOwnInner> mask;
    if (kByKeys && now.masked())
      mask.ask(arguments_.mask, list_of(now), first_outer() + Products::own_outer(), cell_row(now), row_in_cell());
    DroppedWords<kUnits, Shape::kOwnInner> dropped{};
    const bool drops = arguments_.score.dropout.drops();
    if (drops) find_dropped_of(dropped, now);
    Words masked{};
    bool sees = true;
    Scores s = {};
    const auto find_masked = [&] {
      if (!now.masked()) return;
      find_words(masked, mask, now);
      sees = !masked.hide_all();
    };
    constexpr Product kBehindScores = kValues ? Product::sums : Product::probability_gradients;
    multiply<Product::scores, kBehindScores>(s, sees, now, find_masked);
    const Place place = place_of(now);
    change_scores(s, arguments_.score, place);
    if (now.masked()) hide(s, masked);
    Rows lse_log2;
    lse_log2.load(shared_.lse_log2 + first_row);
    exponentiate(s, arguments_.score.scale_log2, lse_log2);
    typename Products::Packed packed;
    if constexpr (kValues) {
      pack<T>(packed, s);
      if (drops) drop(packed, dropped);
    } else {
      follow_changes(s, arguments_.score, lse_log2, place);
      Scores grad = {};
      multiply<Product::probability_gradients, Product::sums>(grad, sees, now, [] {});
      if (drops) drop(grad, dropped);
      Rows dots;
      dots.load(shared_.dot + first_row);
      differentiate(grad, s, dots, arguments_.score.dropout.scale);
      pack<T>(packed, grad);
    }
    products_.store_weights(packed, sees);
    const int count = Products::chunks(arguments_.outer_dims);
    products_.add_products(sums, count, [&](int chunk, std::uint32_t slot) {
      if (chunk + 1 < count) return copies_of<Product::sums>(chunk + 1, now, slot);
      copy_for_tile(next);
      return copies_of<Product::scores>(0, next, slot);
    });
  }

  /// Computes s += outer innerᵀ chunk by chunk, and issues the first copies of product kNext with the last chunk. Calls
  /// begin() once the first chunk is there.
  template <Product kProduct, Product kNext, class Begin>
  __device__ __forceinline__ void multiply(Scores& s, const bool& sees, const TileStep& now, const Begin& begin) {
    const int count = Products::chunks(inner<kProduct>().dim);
#pragma unroll 1
    for (int chunk = 0; chunk < count; ++chunk)
      products_.take(
          [&](std::uint32_t slot) {
            return chunk + 1 < count ? copies_of<kProduct>(chunk + 1, now, slot) : copies_of<kNext>(0, now, slot);
          },
          [&](std::uint32_t slot, Copies& copies) {
            if (chunk == 0) begin();
            if (sees)
              Products::add_scores(s, slot + Shape::InnerTile::kBytes, slot, copies);
            else
              copies.ask_all();
          });
  }

  /// Return the warp's row of cells and its first row in that, where keys are the outer side.
  static __device__ __forceinline__ int cell_row(const TileStep& now) {
    return now.tile * (Shape::kInner / kCellSize) + Products::own_inner() / kCellSize;
  }
  static __device__ __forceinline__ int row_in_cell() { return Products::own_inner() % kCellSize; }

  __device__ __forceinline__ void find_words(Words& masked, const KeyMask<kUnits, Shape::kOwnInner>& mask,
                                             const TileStep& now) const {
    if constexpr (kByKeys)
      masked = mask.masked_scores(arguments_.mask, cell_row(now), row_in_cell());
    else if (arguments_.mask.intervals[0] != nullptr)
      words_from_intervals(masked, shared_.mask, first_outer() + Products::own_outer(), Products::own_inner());
    else
      words_from_cells(masked, shared_.mask, Products::own_outer(), Products::own_inner());
  }

  __device__ __forceinline__ void find_dropped_of(DroppedWords<kUnits, Shape::kOwnInner>& dropped,
                                                  const TileStep& now) const {
    const int outer = first_outer() + Products::own_outer(), inner = first_inner(now) + Products::own_inner();
    if constexpr (kByKeys)
      find_dropped_transposed(dropped, arguments_.score.dropout, batch(), query_head(now), outer, inner);
    else
      find_dropped(dropped, arguments_.score.dropout, batch(), query_head(now), outer, inner);
  }

  __device__ __forceinline__ Place place_of(const TileStep& now) const {
    const int outer = first_outer() + Products::own_outer(), inner = first_inner(now) + Products::own_inner();
    return {batch(), query_head(now), kByKeys ? inner : outer, kByKeys ? outer : inner};
  }

  template <class Out>
  __device__ __forceinline__ void store(const Sums& sums) const {
    const WideGradientArguments& to = arguments_;
    float factors[kUnits][2];
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) factors[i / 2][i % 2] = to.factor;
    Products::store(sums, factors, to.gradient.of<Out>(batch(), shared_.item.head), to.gradient.row, first_outer(),
                    to.outer_length, to.outer_dims);
  }

  WideGradientMemory<Shape>& shared_;
  const WideGradientArguments& arguments_;
  Products products_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    wide_gradient_kernel(const __grid_constant__ WideGradientArguments arguments) {
  WideGradientBlock<Shape>(shared_memory<WideGradientMemory<Shape>>(), arguments).run();
}

}  // namespace flashmask::cuda::sm80
