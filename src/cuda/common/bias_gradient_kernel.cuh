// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/bias_gradient_tiles.cuh"
#include "cuda/common/copy_mask.cuh"
#include "cuda/common/fragment_words.cuh"
#include "cuda/instructions/shared_tile.cuh"
#include "cuda/scores/change_scores.cuh"
#include "cuda/scores/changes.h"
#include "cuda/scores/dropout.cuh"
#include "cuda/scores/score_change.cuh"
#include "cuda/scores/tile_scores.cuh"

namespace flashmask::cuda {

/// Stores number `at` of a tensor.
__device__ __forceinline__ void store_number(void* out, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::f32)
    static_cast<float*>(out)[at] = value;
  else
    static_cast<std::uint16_t*>(out)[at] =
        static_cast<std::uint16_t>(dtype == DType::f16 ? pack<__half>(value, 0) : pack<__nv_bfloat16>(value, 0));
}

/// Tiles of 128 × 128 scores for heads of any width: dims pass through shared memory in chunks of 64, as two halves. Of
/// narrow heads, of up to 32 dims, a chunk holds q and the gradient of o, or k and v. Eight warps take 32 rows × 64
/// columns each.
template <class T>
struct BiasGradientShape {
  using Element = T;
  static constexpr int kRows = kBiasTile, kColumns = kBiasTile, kChunk = 64, kThreads = 256;
  static constexpr int kUnits = 2, kOwnRows = 32, kOwnColumns = 64;
  using Tile = SharedTile<kBiasTile, kChunk / 2>;
};

/// A tile of one head.
struct BiasVisit {
  int number;  // among all tiles that the block may visit
  int batch, head, row_tile, column_tile;
  bool masked;
};

template <class Shape>
struct BiasGradientMemory {
  // Two buffers of a chunk of rows and one of columns, in halves; at the end, sums of the tile.
  alignas(128) std::uint8_t chunks[2][2][2][Shape::Tile::kBytes];
  alignas(16) float lse_log2[2][Shape::kRows];
  alignas(16) float dot[2][Shape::kRows];
  SharedMask<Shape::kRows, Shape::kColumns> mask[2];
  BiasVisit visits[64];  // the last one, this one, and those found so far of the next
  int looked, found;     // how many of the block's tiles its first warp has looked at, and how many visits it found
};

/// Where a block also keeps its tile of the bias, for which most GPUs have the room: two values of a lane in each word.
template <class Shape>
struct BiasKeepingMemory : BiasGradientMemory<Shape> {
  static constexpr int kWords = Shape::kOwnRows * Shape::kOwnColumns / 64;  // of a thread
  uint4 bias[kWords / 4][Shape::kThreads];
};

/// The gradient of a bias. A block takes a tile of values through the scores of all heads that share them, or the tiles
/// of a column or of a diagonal where rows share values. It recomputes p and the gradients of p, and sums gradients of
/// scores in registers, in the order of heads and then of tiles.
template <class Shape>
class BiasGradientBlock {
  using T = typename Shape::Element;
  using Tile = typename Shape::Tile;
  static constexpr int kUnits = Shape::kUnits, kEights = Shape::kOwnColumns / 8, kPairs = kEights / 2,
                       kHalf = Shape::kChunk / 2;
  using Scores = float[kUnits][kEights][4];

 public:
  /// `number`: of the block's place, among those of all lists.
  __device__ __forceinline__ BiasGradientBlock(BiasKeepingMemory<Shape>& shared, const BiasGradientArguments& arguments,
                                               int number, int part)
      : shared_(shared), arguments_(arguments), number_(number), part_(part) {
    const BiasGradientArguments::Place own = place();
    numbers_ = own.heads * own.tiles;
  }

  __device__ __forceinline__ void run() {
    Scores sums = {};
    if (warp() == 0) {
      if (lane_index() == 0) shared_.looked = shared_.found = 0;
      __syncwarp();
      find_visits();
    }
    __syncthreads();
    if (exists(visit(0))) {
      copy_chunk(0, 0);
      copy_for_tile(0);
      commit_copies();
    }
#pragma unroll 1
    for (int i = 0; exists(visit(i)); ++i) add_tile(sums, i);
    await_copies<0>();
    __syncthreads();
    if (arguments_.parts > 1) return store_part(sums);
    if (arguments_.sums == BiasSums::tiles) return store(sums);
    if (arguments_.sums == BiasSums::columns) return store_columns(sums);
    store_diagonals(sums);
  }

  /// Adds up the parts of a tile, in their order.
  __device__ __forceinline__ void join() const {
    Scores sums = {};
#pragma unroll 1
    for (int part = 0; part < arguments_.parts; ++part) {
      const float* const from = of_part(part);
      for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
        sums[unit][eight][i] += from[((unit * kEights + eight) * 4 + i) * Shape::kThreads];
      });
    }
    store(sums);
  }

 private:
  static __device__ __forceinline__ int warp() { return static_cast<int>(thread_index()) / 32; }
  static __device__ __forceinline__ int own_row() { return warp() / 2 * Shape::kOwnRows; }
  static __device__ __forceinline__ int own_column() { return warp() % 2 * Shape::kOwnColumns; }

  // Which tiles.

  using Visit = BiasVisit;
  __device__ __forceinline__ BiasGradientArguments::Place place() const { return arguments_.place(number_, part_); }
  __device__ __forceinline__ Visit& visit(int i) const { return shared_.visits[i % 64]; }
  __device__ __forceinline__ bool exists(const Visit& visit) const { return visit.number < numbers_; }

  /// Finds the next visits, or that there are none, by one warp: each lane looks at a tile.
  __device__ __forceinline__ void find_visits() {
    const int lane = lane_index();
    int looked = shared_.looked, end = shared_.found;
    unsigned found = 0;
#pragma unroll 1
    for (; found == 0 && looked < numbers_; looked += 32) {
      Visit own = visit_of(looked + lane);
      const bool active = exists(own) && find(own);
      found = __ballot_sync(~0U, active);
      if (active) visit(end + __popc(found & ((1U << lane) - 1))) = own;
      end += __popc(found);
    }
    __syncwarp();  // all lanes have read what the first one writes
    if (lane == 0) {
      if (looked >= numbers_) visit(end).number = numbers_;
      shared_.looked = looked;
      shared_.found = end;
    }
    __syncwarp();
  }

  __device__ __forceinline__ Visit visit_of(int number) const {
    const BiasGradientArguments::Place from = place();
    const int of_list = number / from.tiles, tile = number % from.tiles;
    return {number,
            from.first_batch + of_list / arguments_.list_heads,
            from.first_head + of_list % arguments_.list_heads,
            from.row_tile + tile,
            from.column_tile + (arguments_.sums == BiasSums::diagonals ? tile : 0),
            false};
  }

  /// Returns whether a tile is visited, and says in the visit whether it needs its mask.
  __device__ __forceinline__ bool find(Visit& visit) const {
    const BiasGradientArguments::TileNeeds needs =
        arguments_.needs_of(list_of(visit), visit.row_tile, visit.column_tile);
    visit.masked = needs.mask || (visit.column_tile + 1) * Shape::kColumns > arguments_.key_length;
    return needs.visit;
  }
  __device__ __forceinline__ int list_of(const Visit& visit) const {
    return arguments_.list_of(visit.batch, visit.head);
  }

  // Copies.

  /// Issues the copies of a chunk: of q and k, and past those of grad_o and v; of narrow heads, of all four.
  __device__ __forceinline__ void copy_chunk(int number, int chunk) {
    const BiasGradientArguments& from = arguments_;
    const Visit& visit = this->visit(number);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const bool values = from.narrow ? half == 1 : chunk >= from.score_chunks;
      const int first = from.narrow ? 0 : (2 * (values ? chunk - from.score_chunks : chunk) + half) * kHalf;
      copy_side(side(number, chunk, 0, half), (values ? from.grad_o : from.q).of(visit.batch, visit.head), first,
                visit.row_tile);
      copy_side(side(number, chunk, 1, half), (values ? from.v : from.k).of(visit.batch, visit.head / from.head_ratio),
                first, visit.column_tile);
    }
  }
  static __device__ __forceinline__ void copy_side(std::uint32_t to, Rows rows, int first_dim, int tile) {
    rows.first += first_dim;
    rows.dim -= first_dim;
    Tile::template copy<Shape::kThreads>(to, rows, tile * Tile::kRows, thread_index());
  }

  /// Returns where half of a chunk of tile i lies. side: 0 for rows, 1 for columns.
  __device__ __forceinline__ std::uint32_t side(int i, int chunk, int side, int half) const {
    return shared_address(shared_.chunks[(i * arguments_.chunks + chunk) % 2][side][half]);
  }

  __device__ __forceinline__ void copy_for_tile(int number) {
    const Visit& visit = this->visit(number);
    const BiasGradientArguments& from = arguments_;
    constexpr int kPieces = Shape::kRows / 4;
    const int thread = static_cast<int>(thread_index()), piece = thread % kPieces * 4;
    const std::int64_t head = static_cast<std::int64_t>(visit.batch) * from.query_heads + visit.head;
    const std::int64_t at = head * from.statistics.padded + visit.row_tile * Shape::kRows + piece;
    if (thread < kPieces)
      copy_16(shared_address(shared_.lse_log2[number % 2] + piece), from.statistics.lse_log2 + at, true);
    else if (thread < 2 * kPieces)
      copy_16(shared_address(shared_.dot[number % 2] + piece), from.statistics.dot + at, true);
    if (visit.masked)
      copy_mask<Shape::kThreads>(shared_.mask[number % 2], from.mask, list_of(visit), visit.row_tile * Shape::kRows,
                                 visit.column_tile * Shape::kColumns, thread_index());
  }

  // A tile.

  /// Adds the gradients of scores of tile i to the sums.
  __device__ __forceinline__ void add_tile(Scores& sums, int i) {
    const BiasGradientArguments& from = arguments_;
    if (warp() == 0 && shared_.found == i + 1) find_visits();
    if constexpr (!Changes<Shape>) {
      const bool reads_bias = reads_bias_of(i);
      if (from.narrow && !reads_bias && from.score.to_exponent == 0 && !from.score.dropout.drops())
        return visit(i).masked ? add_narrow_tile<true>(sums, i) : add_narrow_tile<false>(sums, i);
      if (reads_bias) fetch_changes<kUnits, kEights>(from.score, place_of(visit(i)));
    }
    Scores s = {};
#pragma unroll 1
    for (int half = 0; half < (from.narrow ? 1 : 2 * from.score_chunks); ++half) {
      if (half % 2 == 0) begin_step(i, half / 2);
      multiply_half(s, i, half, from.k.dim - half * kHalf);
    }
    weigh(s, i);
    Scores grad = {};
    const int first_half = from.narrow ? 1 : 2 * from.score_chunks;
#pragma unroll 1
    for (int half = first_half; half < 2 * from.chunks; ++half) {
      if (half % 2 == 0) begin_step(i, half / 2);
      multiply_half(grad, i, half, from.v.dim - (half - first_half) * kHalf);
    }
    if (from.score.dropout.drops()) {
      DroppedWords<kUnits, Shape::kOwnColumns> dropped;
      const PlaceByRows place = place_of(visit(i));
      find_dropped(dropped, from.score.dropout, place.batch, place.head, place.first_row, place.first_column);
      drop(grad, dropped);
    }
    RowNumbers<kUnits> dots;
    dots.load(shared_.dot[i % 2] + own_row());
    differentiate(grad, s, dots, from.score.dropout.scale);
    for_each_score<kUnits, kEights>([&](int unit, int eight, int j) { sums[unit][eight][j] += grad[unit][eight][j]; });
  }

  /// Turns products of tile i into probabilities, times the derivatives of their scores by what the bias has there.
  __device__ __forceinline__ void weigh(Scores& s, int i) {
    const BiasGradientArguments& from = arguments_;
    const PlaceByRows place = place_of(visit(i));
    RowNumbers<kUnits> lse_log2;
    if constexpr (Changes<Shape>) {
      lse_log2.load(shared_.lse_log2[i % 2] + own_row());
      weigh_by_bias<typename Shape::Change>(s, from.change, lse_log2, place);
      if (visit(i).masked) hide_masked(s, place.first_row, i % 2, 0);
    } else {
      if (from.score.to_exponent != 0) cap(s, from.score.to_exponent);
      if (reads_bias_of(i))
        read_bias(s, place);
      else
        add_kept_bias(s);
      if (visit(i).masked) hide_masked(s, place.first_row, i % 2, -INFINITY);
      lse_log2.load(shared_.lse_log2[i % 2] + own_row());
      exponentiate(s, from.score.scale_log2, lse_log2);
    }
  }
  /// Whether tile i is the first for which values of the bias are read, rather than found where they are kept.
  __device__ __forceinline__ bool reads_bias_of(int i) const { return !arguments_.keeps_bias || i == 0; }

  /// Does what add_tile() does for narrow heads, whose dims lie in one chunk, with the bias kept and scores not changed
  /// otherwise: 16 columns after the other go from their products to the sums. Few numbers are under way for each, so
  /// that the compiler runs products of some columns beside the powers of two of others.
  template <bool kMasked>
  __device__ __forceinline__ void add_narrow_tile(Scores& sums, int i) {
    begin_step(i, 0);
    RowFragments q, grad_o;
    load_rows(q, side(i, 0, 0, 0));
    load_rows(grad_o, side(i, 0, 0, 1));
    MaskedWords masked;
    if constexpr (kMasked) find_masked(masked, place_of(visit(i)).first_row, i % 2);
    RowNumbers<kUnits> lse_log2, dots;
    lse_log2.load(shared_.lse_log2[i % 2] + own_row());
    dots.load(shared_.dot[i % 2] + own_row());
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      float s[kUnits][2][4] = {}, grad[kUnits][2][4] = {};
      multiply_columns(s, q, side(i, 0, 1, 0), pair);
      add_kept_bias(s, pair);
      if constexpr (kMasked)
        for_each_score<kUnits, 2>([&](int unit, int eight, int j) {
          const auto [word, bit] = MaskedWords::place(unit, 2 * pair + eight, j);
          if (masked.words[word] & 1U << bit) s[unit][eight][j] = -INFINITY;
        });
      exponentiate(s, arguments_.score.scale_log2, lse_log2);
      multiply_columns(grad, grad_o, side(i, 0, 1, 1), pair);
      differentiate(grad, s, dots);
      for_each_score<kUnits, 2>(
          [&](int unit, int eight, int j) { sums[unit][2 * pair + eight][j] += grad[unit][eight][j]; });
    }
  }

  /// The warp's rows of a side of narrow heads.
  using RowFragments = std::uint32_t[Tile::kPanels][kUnits][4];

  static __device__ __forceinline__ void load_rows(RowFragments& rows, std::uint32_t from) {
    from += Tile::lane_rows() + Tile::step(own_row(), 0);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel)
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) load_matrices(rows[panel][unit], from + Tile::step(16 * unit, panel));
  }

  /// Adds the product of rows of narrow heads with 16 of the warp's columns to their scores.
  static __device__ __forceinline__ void multiply_columns(float (&s)[kUnits][2][4], const RowFragments& rows,
                                                          std::uint32_t columns, int pair) {
    columns += Tile::lane_columns() + Tile::step(own_column(), 0);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      std::uint32_t b[4];
      load_matrices(b, columns + Tile::step(16 * pair, panel));
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        multiply<T>(s[unit][0], rows[panel][unit], b[0], b[1]);
        multiply<T>(s[unit][1], rows[panel][unit], b[2], b[3]);
      }
    }
  }

  /// Returns where the warp's scores lie.
  static __device__ __forceinline__ PlaceByRows place_of(const Visit& visit) {
    return {visit.batch, visit.head, visit.row_tile * Shape::kRows + own_row(),
            visit.column_tile * Shape::kColumns + own_column()};
  }

  using Words = std::uint32_t[kUnits * kEights * 2];

  /// Adds the values of the bias to capped scores, and keeps them where each thread finds its own again.
  __device__ __forceinline__ void read_bias(Scores& s, const PlaceByRows& place) {
    const BiasArguments& bias = arguments_.score.bias;
    Words words = {};
    BiasValues<kUnits, kEights, PlaceByRows>(bias, place).for_each([&](int unit, int eight, int i, float value) {
      s[unit][eight][i] = add_bias(bias, s[unit][eight][i], value);
      words[(unit * kEights + eight) * 2 + i / 2] |= i % 2 == 0 ? pack<T>(value, 0) : pack<T>(0, value);
    });
    if (!arguments_.keeps_bias) return;
#pragma unroll
    for (int i = 0; i < kUnits * kEights / 2; ++i)
      shared_.bias[i][thread_index()] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }

  __device__ __forceinline__ void add_kept_bias(Scores& s) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      float columns[kUnits][2][4];
      for_each_score<kUnits, 2>(
          [&](int unit, int eight, int i) { columns[unit][eight][i] = s[unit][2 * pair + eight][i]; });
      add_kept_bias(columns, pair);
      for_each_score<kUnits, 2>(
          [&](int unit, int eight, int i) { s[unit][2 * pair + eight][i] = columns[unit][eight][i]; });
    }
  }
  /// Adds the kept values to the scores of 16 columns.
  __device__ __forceinline__ void add_kept_bias(float (&s)[kUnits][2][4], int pair) const {
    const BiasArguments& bias = arguments_.score.bias;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const uint4 four = shared_.bias[unit * kPairs + pair][thread_index()];
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 values = unpack<T>(words[i]);
        float* const two = &s[unit][i / 2][i % 2 * 2];
        two[0] = add_bias(bias, two[0], values.x);
        two[1] = add_bias(bias, two[1], values.y);
      }
    }
  }

  /// Waits for a chunk of tile i and issues the copies of the next one.
  __device__ __forceinline__ void begin_step(int i, int chunk) {
    await_copies<0>();
    __syncthreads();
    if (chunk + 1 < arguments_.chunks) {
      copy_chunk(i, chunk + 1);
    } else if (exists(visit(i + 1))) {
      copy_chunk(i + 1, 0);
      copy_for_tile(i + 1);
    }
    commit_copies();
  }

  /// Adds the product of half a chunk's rows and columns to the warp's scores. half: counted over the chunks of tile i;
  /// dims: how many there are from its first on.
  __device__ __forceinline__ void multiply_half(Scores& s, int i, int half, int dims) {
    const std::uint32_t a = side(i, half / 2, 0, half % 2) + Tile::lane_rows() + Tile::step(own_row(), 0);
    const std::uint32_t b = side(i, half / 2, 1, half % 2) + Tile::lane_columns() + Tile::step(own_column(), 0);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      if (16 * panel >= dims) break;
      std::uint32_t rows[kUnits][4];
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) load_matrices(rows[unit], a + Tile::step(16 * unit, panel));
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        std::uint32_t columns[4];
        load_matrices(columns, b + Tile::step(16 * pair, panel));
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          multiply<T>(s[unit][2 * pair], rows[unit], columns[0], columns[1]);
          multiply<T>(s[unit][2 * pair + 1], rows[unit], columns[2], columns[3]);
        }
      }
    }
  }

  using MaskedWords = FragmentWords<kUnits, Shape::kOwnColumns>;
  __device__ __forceinline__ void find_masked(MaskedWords& masked, int first_row, int stage) const {
    if (arguments_.mask.intervals[0] != nullptr)
      words_from_intervals(masked, shared_.mask[stage], first_row, own_column());
    else
      words_from_cells(masked, shared_.mask[stage], own_row(), own_column());
  }
  /// Sets masked scores to `value`.
  __device__ __forceinline__ void hide_masked(Scores& s, int first_row, int stage, float value) const {
    MaskedWords masked;
    find_masked(masked, first_row, stage);
    replace<MaskedWords>(s, masked.words, value);
  }

  // Results.

  __device__ __forceinline__ void store_value(std::int64_t at, float value) const {
    store_number(arguments_.out, arguments_.gradient.dtype, at, value);
  }
  __device__ __forceinline__ std::int64_t first_value() const {
    return place().first_batch * arguments_.gradient.batch + place().first_head * arguments_.gradient.head;
  }

  static constexpr int kOwnScores = kUnits * kEights * 4;

  /// Returns where the thread's first number of a part lies; the others are kThreads further on each.
  __device__ __forceinline__ float* of_part(int part) const {
    const std::int64_t before = std::int64_t{number_} * arguments_.parts + part;
    return arguments_.partial + before * kOwnScores * Shape::kThreads + thread_index();
  }

  __device__ __forceinline__ void store_part(const Scores& sums) const {
    float* const to = of_part(part_);
    for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
      to[((unit * kEights + eight) * 4 + i) * Shape::kThreads] = sums[unit][eight][i];
    });
  }

  /// Stores the tile's sums as they lie.
  __device__ __forceinline__ void store(const Scores& sums) const {
    const BiasArguments& to = arguments_.gradient;
    const PlaceByRows own{0, 0, place().row_tile * Shape::kRows + own_row(),
                          place().column_tile * Shape::kColumns + own_column()};
    const int first_row = own.row(lane_index()), first_column = own.column(lane_index());
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * unit + 8 * half;
        if (row >= to.query_length) continue;
        const std::int64_t of_row = first_value() + row * to.row;
#pragma unroll
        for (int eight = 0; eight < kEights; ++eight) {
          const int column = first_column + 8 * eight;
          const float(&four)[4] = sums[unit][eight];
          if (to.in_pairs) {
            if (column < to.key_length)
              static_cast<std::uint32_t*>(arguments_.out)[(of_row + column) / 2] =
                  to.dtype == DType::f16 ? pack<__half>(four[2 * half], four[2 * half + 1])
                                         : pack<__nv_bfloat16>(four[2 * half], four[2 * half + 1]);
            continue;
          }
          for (int i = 0; i < 2; ++i) {
            const int entry = to.entry(row, column + i);
            if (column + i < to.key_length && 0 <= entry && entry < to.entries)
              store_value(of_row + entry, four[2 * half + i]);
          }
        }
      }
  }

  /// Adds the rows up and stores one value for each column.
  __device__ __forceinline__ void store_columns(const Scores& sums) const {
    auto* const of_warps = reinterpret_cast<float*>(shared_.chunks);  // [warp][own column]
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = 0;
#pragma unroll
        for (int line = 0; line < 2 * kUnits; ++line) sum += sums[line / 2][eight][line % 2 * 2 + i];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance);
        if (lane_index() < 4) of_warps[warp() * Shape::kOwnColumns + 8 * eight + 2 * lane_index() + i] = sum;
      }
    __syncthreads();
    const int own = static_cast<int>(thread_index()), column = place().column_tile * Shape::kColumns + own;
    if (own >= Shape::kColumns || column >= arguments_.key_length) return;
    float sum = 0;
    for (int rows = 0; rows < Shape::kRows / Shape::kOwnRows; ++rows)
      sum += of_warps[(2 * rows + own / Shape::kOwnColumns) * Shape::kOwnColumns + own % Shape::kOwnColumns];
    store_value(first_value() + column, sum);
  }

  /// Adds the diagonals up, for join_diagonals_kernel().
  __device__ __forceinline__ void store_diagonals(const Scores& sums) const {
    static_assert(sizeof(shared_.chunks) >= Shape::kRows * Shape::kColumns * sizeof(float));
    auto* const tile = reinterpret_cast<float*>(shared_.chunks);
    const PlaceByRows own{0, 0, own_row(), own_column()};
    const int first = own.row(lane_index()) * Shape::kColumns + own.column(lane_index());
    for_each_score<kUnits, kEights>([&](int unit, int eight, int i) {
      tile[first + PlaceByRows::rows_to(unit, eight, i) * Shape::kColumns + PlaceByRows::columns_to(unit, eight, i)] =
          sums[unit][eight][i];
    });
    __syncthreads();
    const int distance = static_cast<int>(thread_index()) - (Shape::kColumns - 1);  // row − column
    float sum = 0;
    for (int row = max(distance, 0); row < min(Shape::kRows, Shape::kColumns + distance); ++row)
      sum += tile[row * Shape::kColumns + row - distance];
    arguments_.partial[std::int64_t{number_} * Shape::kThreads + thread_index()] = sum;
  }

  BiasKeepingMemory<Shape>& shared_;  // a BiasGradientMemory where the tile's bias is not kept
  const BiasGradientArguments& arguments_;
  int number_, part_;
  int numbers_;  // of tiles that the block may visit
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    bias_gradient_kernel(const __grid_constant__ BiasGradientArguments arguments) {
  const int block = static_cast<int>(blockIdx.x);
  BiasGradientBlock<Shape>(shared_memory<BiasKeepingMemory<Shape>>(), arguments, block / arguments.parts,
                           block % arguments.parts)
      .run();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    join_parts_kernel(const __grid_constant__ BiasGradientArguments arguments) {
  BiasGradientBlock<Shape>(shared_memory<BiasKeepingMemory<Shape>>(), arguments, static_cast<int>(blockIdx.x), 0)
      .join();
}

/// Makes an entry of the gradient of a table of distances that rows share. Two diagonals of tiles hold scores of a
/// distance.
__device__ __forceinline__ void join_diagonals(const BiasGradientArguments& arguments, int list, int entry) {
  const BiasArguments& to = arguments.gradient;
  const int places = arguments.places();
  const float* const of_list = arguments.partial + static_cast<std::int64_t>(list) * places * 2 * kBiasTile;
  // The number of the entry's distance, counted from that of the first diagonal of tiles.
  const std::int64_t number = std::int64_t{entry} - to.shift + std::int64_t{arguments.column_tiles} * kBiasTile - 1;
  const std::int64_t diagonal = number / kBiasTile, within = number % kBiasTile;
  float sum = 0;
  if (number >= kBiasTile && diagonal - 1 < places) sum += of_list[(diagonal - 1) * 2 * kBiasTile + kBiasTile + within];
  if (number >= 0 && diagonal < places) sum += of_list[diagonal * 2 * kBiasTile + within];
  const std::int64_t at = list / arguments.lists_across * to.batch + list % arguments.lists_across * to.head + entry;
  store_number(arguments.out, to.dtype, at, sum);
}

}  // namespace flashmask::cuda
