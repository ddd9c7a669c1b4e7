// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "cpu/bias_tile.h"
#include "cpu/dropout_words.h"
#include "cpu/kernel_tasks.h"
#include "cpu/prefetch.h"
#include "cpu/register_tile.h"
#include "cpu/score_change.h"
#include "cpu/tile_extent.h"
#include "cpu/tile_memory.h"
#include "cpu/tile_operands.h"

namespace flashmask::cpu {

/// Computes online softmax over one row tile (FlashMask, algorithm 1) with scores held transposed: lines are keys,
/// lanes are queries. So the statistics of 64 queries are four AVX-512 vectors, the maximum and the sum need no
/// reduction across lanes, keys and values are read as they lie in memory, and the mask of a key column is one word.
template <class Isa>
class ForwardKernel {
 public:
  static std::size_t scratch_bytes(int head_dim, int value_dim, bool has_bias_tensor) {
    HeadSizes sizes{};
    sizes.has_bias_tensor = has_bias_tensor;
    sizes.head_dim = head_dim;
    sizes.value_dim = value_dim;
    return ForwardKernel(sizes, nullptr).used_;
  }

  static void run(const ForwardTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    ForwardKernel kernel(task.sizes, task.scratch);
    kernel.begin(task);
    for (std::int64_t i = 0; i < task.runs.count; ++i) {
      const Run run = task.runs.runs[i];
      for (std::int64_t tile = run.begin; tile < run.end; ++tile) {
        if (i + 1 == task.runs.count && tile + 1 == run.end) kernel.prefetch_next(task);
        kernel.visit(task, tile, run.kind);
      }
    }
    kernel.finish(task);
    Isa::fence();
  }

 private:
  using Unit = typename Isa::Unit;
  using Vec = typename Isa::Vec;
  static constexpr int kTile = kForwardRows;
  using Blocks = RowBlocks<Isa, kTile>;
  /// Cache lines of the next operands to prefetch per register tile: few, so that they are on their way while products
  /// are computed and do not keep their loads waiting.
  static constexpr int kPrefetchLines = 16;
  /// Cache lines of the next bias tile to prefetch per register tile of scores.
  static constexpr int kBiasPrefetchLines = 48;
  static constexpr int kPanels = kTile / kPanel<Isa>;
  static constexpr float kLog2E = 1.44269504088896340736f;
  static constexpr float kLn2 = 0.69314718055994530942f;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kLowest = std::numeric_limits<float>::lowest();
  /// A row's reference maximum follows its true maximum only once that exceeds it by more than 8, in log2:
  /// probabilities stay within 2^8, far from overflow, and the output is rescaled once or twice instead of at every
  /// tile.
  static constexpr float kRescaleThreshold = 8.0f;

  FLASHMASK_INLINE ForwardKernel(const HeadSizes& sizes, std::byte* memory)
      : units_(units_of<Isa>(sizes.head_dim)),
        value_stride_(local_stride<Isa>(sizes.value_dim)),
        value_columns_(round_up_lanes<Isa>(sizes.value_dim)),
        key_stride_(local_stride<Isa>(sizes.head_dim)),
        copies_(tile_copies<Isa>(sizes.dtype)) {
    Scratch scratch(memory);
    queries_ = scratch.take<Unit>(round_up_lanes<Isa>(units_) * kTile);
    keys_ = scratch.take<Unit>(key_stride_ * kTile);
    values_ = scratch.take<Unit>(value_stride_ * kTile);
    scores_ = scratch.take<float>(kTile * kTile);
    output_ = scratch.take<float>(value_stride_ * kTile);
    maximum_ = scratch.take<float>(kTile);
    sum_ = scratch.take<float>(kTile);
    tile_maximum_ = scratch.take<float>(kTile);
    rescale_ = scratch.take<float>(kTile);
    largest_ = scratch.take<float>(kTile);
    bias_.take(scratch, sizes.has_bias_tensor);
    used_ = scratch.used();
  }

  FLASHMASK_INLINE void begin(const ForwardTask& task) {
    row0_ = task.row_tile * kTile;
    const TokenRun rows = task.sizes.queries.at(row0_, kTile);
    row_token_ = rows.first;
    rows_ = static_cast<int>(rows.count);
    change_ = TileChange<Isa>(task.sizes, task.bias);
    if (change_.biases()) query_positions_.read(task.bias.query_positions, row_token_, task.bias.row_shift, rows_);
    if (change_.computes()) of_queries_.compute(task.sizes.function, task.bias.operands, false, row_token_, rows_);
    if (task.runs.count != 0) {
      copies_.load_transposed(queries_, keys_, key_stride_, task.q, row_token_, kTile, rows_, task.sizes.head_dim);
    }
    for (int q = 0; q < kTile; q += Isa::lanes) {
      Isa::store(maximum_ + q, Isa::broadcast(-kInfinity));
      Isa::store(sum_ + q, Isa::broadcast(0.0f));
      Isa::store(largest_ + q, Isa::broadcast(-kInfinity));
    }
    for (Sum& sum : output_sums_) sum = Sum::start;
    // A line is read into the cache before it is written, unless it bypasses the caches.
    if (!task.o.past_caches) copies_.prefetch(output_rows_, {task.o.data, task.o.stride}, rows, task.sizes.value_dim);
  }

  /// Starts to prefetch what the next task reads first. Within a row tile the processor prefetches by itself, but short
  /// documents consist mostly of first tiles.
  FLASHMASK_INLINE void prefetch_next(const ForwardTask& task) {
    const FirstRead& next = task.next;
    if (next.q.data == nullptr) return;
    copies_.prefetch(next_[0], next.q, next.rows, task.sizes.head_dim);
    copies_.prefetch(next_[1], next.k, next.columns, task.sizes.head_dim);
    copies_.prefetch(next_[2], next.v, next.columns, task.sizes.value_dim);
  }

  FLASHMASK_INLINE void fetch_next() {
    int lines = output_rows_.fetch(kPrefetchLines);
    for (Prefetch& next : next_) lines = next.fetch(lines);
  }

  FLASHMASK_INLINE void visit(const ForwardTask& task, std::int64_t column_tile, TileKind kind) {
    const std::int64_t column0 = column_tile * kTile;
    const TokenRun columns = task.sizes.keys.at(column0, kTile);
    const TileBounds tile{row0_, column0, rows_, static_cast<int>(columns.count), row_token_, columns.first};
    extent_.set_whole();
    if (change_.biases()) key_positions_.read(task.bias.key_positions, tile.column_token, 0, tile.columns);
    if (change_.computes())
      of_keys_.compute(task.sizes.function, task.bias.operands, true, tile.column_token, tile.columns);
    if (change_.adds()) {
      bias_.read(task.bias.values, tile);
      bias_.prefetch_next(next_bias_, task.bias.values, tile, task.sizes.keys.tokens);
    }
    if (kind == TileKind::full && tile.columns == kTile) {
      step<false>(task, tile);
      return;
    }
    if (kind == TileKind::full) {
      for (int c = 0; c < kTile; ++c) bits_.word[c] = c < tile.columns ? ~0ULL : 0;
    } else {
      task.column_words(task.mask, tile, bits_.word);
    }
    if (task.trim) extent_.set_visible(bits_);
    step<true>(task, tile);
  }

  template <bool Masked>
  FLASHMASK_INLINE void step(const ForwardTask& task, const TileBounds& tile) {
    score<Masked>(task, tile);
    if (task.max_scores != nullptr) keep_largest();
    follow_maximum();
    if (task.dropout.threshold == 0) {
      exponentiate<false>();
    } else {
      DropoutWords<Isa>::column_words(task.dropout, tile.row_token, tile.column_token, kept_.word);
      exponentiate<true>();
    }
    accumulate(value_operand<Isa, kTile>(copies_, task.v, tile, task.sizes.value_dim,
                                         {values_, value_stride_, extent_.lines.begin, extent_.lines.end}));
  }

  /// Computes scores_[key][query] = scale · log2(e) · k · qᵀ, −∞ where masked, and tile_maximum_[query].
  template <bool Masked>
  FLASHMASK_INLINE void score(const ForwardTask& task, const TileBounds& tile) {
    const auto keys = key_operand<Isa, kTile>(copies_, task.k, tile, task.sizes.head_dim,
                                              {keys_, key_stride_, extent_.lines.begin, extent_.lines.end});
    for (int panel = 0; panel < kPanels; ++panel) {
      const Panel<Unit> queries{queries_ + panel * round_up_lanes<Isa>(units_) * kPanel<Isa>, kPanel<Isa>};
      for (int v = 0; v < Isa::vectors; ++v)
        Isa::store(tile_maximum_ + panel * kPanel<Isa> + v * Isa::lanes, Isa::broadcast(-kInfinity));
      extent_.register_tiles(panel, [&](auto rows, auto vectors, int key0, int lane0) FLASHMASK_INLINE_LAMBDA {
        fetch_next();
        if (change_.adds()) next_bias_.fetch(kBiasPrefetchLines);
        score_register_tile<Masked, rows.value, vectors.value>(
            key0, lane0, keys, {queries.data + lane0 - panel * kPanel<Isa>, queries.stride});
      });
    }
  }

  template <bool Masked, int Rows, int Vectors>
  FLASHMASK_INLINE void score_register_tile(int key0, int lane0, Broadcast<Unit> keys, Panel<Unit> queries) {
    const Vec scale = Isa::broadcast(change_.scale() * kLog2E);
    // Not const: GCC 12 would keep a constant aggregate in memory through the whole inner loop.
    Accumulators<Isa, Rows, Vectors> acc =
        register_tile<Isa, Rows, Vectors>({keys.data + key0 * keys.row_stride, keys.row_stride, 1}, queries, units_);
    if (change_.changes())
      change_.change(
          acc,
          {key_positions_.at + key0,
           query_positions_.at + lane0,
           bias_.at(key0, lane0),
           bias_.line_stride(),
           {of_keys_.at(key0), of_queries_.at(lane0), of_keys_.kSlotStride, of_queries_.kSlotStride, true, kTile, {}}},
          {nullptr, nullptr});
    unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
      const int lane = lane0 + v * Isa::lanes;
      Vec top = Isa::load(tile_maximum_ + lane);
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        Vec s = Isa::mul(acc.v[r][v], scale);
        if constexpr (Masked) s = Isa::select(bits_.word[key0 + r] >> lane, s, Isa::broadcast(-kInfinity));
        top = Isa::max(top, s);
        Isa::store(scores_ + (key0 + r) * kTile + lane, s);
      });
      Isa::store(tile_maximum_ + lane, top);
    });
  }

  /// Keeps the largest scores, which the reference maxima may lag behind.
  FLASHMASK_INLINE void keep_largest() {
    for (int q = 0; q < kTile; q += Isa::lanes)
      Isa::store(largest_ + q, Isa::max(Isa::load(largest_ + q), Isa::load(tile_maximum_ + q)));
  }

  /// Raises the reference maximum of the queries that have outgrown it, and rescales what was summed under the old one.
  FLASHMASK_INLINE void follow_maximum() {
    std::uint64_t moved = 0;
    for (int q = 0; q < kTile; q += Isa::lanes) {
      const Vec old = Isa::load(maximum_ + q);
      const Vec top = Isa::load(tile_maximum_ + q);
      const std::uint64_t outgrown = Isa::greater(top, Isa::add(old, Isa::broadcast(kRescaleThreshold)));
      if (outgrown == 0) continue;
      const Vec rescale = Isa::select(outgrown, Isa::exp2(Isa::sub(old, top)), Isa::broadcast(1.0f));
      const std::uint64_t started = Isa::greater(old, Isa::broadcast(-kInfinity));
      Isa::store(rescale_ + q, rescale);
      Isa::store(sum_ + q, Isa::mul(Isa::load(sum_ + q), rescale));
      Isa::store(maximum_ + q, Isa::select(outgrown, top, old));
      moved |= (outgrown & started) << q;
    }
    for (; moved != 0; moved &= moved - 1) {
      const int q = __builtin_ctzll(moved);
      const Vec factor = Isa::broadcast(rescale_[q]);
      float* row = output_ + q * value_stride_;
      for (std::int64_t c = 0; c < value_columns_; c += Isa::lanes)
        Isa::store(row + c, Isa::mul(Isa::load(row + c), factor));
    }
  }

  /// Turns scores into probabilities in place, as units of a reduction over keys, [key / step][query], and adds them to
  /// sum_[query]. Dropped ones count in the sum, but not in the product that follows.
  template <bool Dropout>
  FLASHMASK_INLINE void exponentiate() {
    for (int q = 0; q < kTile; q += Isa::lanes) {
      // A reference of −∞ would turn a masked score into NaN: −∞ − −∞.
      const Vec reference = Isa::max(Isa::load(maximum_ + q), Isa::broadcast(kLowest));
      Vec even = Isa::load(sum_ + q), odd = Isa::broadcast(0.0f);
      for (int block = 0; block < Blocks::count; ++block) {
        const bool active = extent_.vector_active(block, q);
        for (int key = Blocks::begin(block); key < Blocks::end(block); key += 2) {
          Vec p0 = Isa::broadcast(0.0f), p1 = p0;
          if (active) {
            p0 = Isa::exp2(Isa::sub(Isa::load(scores_ + key * kTile + q), reference));
            p1 = Isa::exp2(Isa::sub(Isa::load(scores_ + (key + 1) * kTile + q), reference));
            even = Isa::add(even, p0);
            odd = Isa::add(odd, p1);
            if constexpr (Dropout) {
              p0 = Isa::select(kept_.word[key] >> q, p0, Isa::broadcast(0.0f));
              p1 = Isa::select(kept_.word[key + 1] >> q, p1, Isa::broadcast(0.0f));
            }
          }
          Isa::store_row_pair(probabilities() + key / Isa::step * kTile + q, kTile, p0, p1);
        }
      }
      Isa::store(sum_ + q, Isa::add(even, odd));
    }
  }

  /// Adds output_[query] += P v.
  FLASHMASK_INLINE void accumulate(Panel<Unit> values) {
    for (std::int64_t column = 0; column < value_columns_; column += kPanel<Isa>) {
      for (int block = 0; block < Blocks::count; ++block) {
        const int begin = extent_.needed[block].begin / Isa::step;
        const int end = (extent_.needed[block].end + Isa::step - 1) / Isa::step;
        if (begin >= end) continue;
        fetch_next();
        const int q = Blocks::begin(block);
        accumulate_block<Isa, kTile>(output_ + q * value_stride_, value_stride_, block,
                                     {probabilities() + begin * kTile + q, 1, kTile},
                                     {values.data + begin * values.stride + column, values.stride}, end - begin, column,
                                     value_columns_, output_sums_[block]);
      }
    }
    for (int block = 0; block < Blocks::count; ++block)
      if (extent_.needed[block].begin < extent_.needed[block].end) output_sums_[block] = Sum::go_on;
  }

  FLASHMASK_INLINE void finish(const ForwardTask& task) {
    for (int block = 0; block < Blocks::count; ++block)
      if (output_sums_[block] == Sum::start)
        fill_zero<Isa>(output_ + Blocks::begin(block) * value_stride_,
                       (Blocks::end(block) - Blocks::begin(block)) * value_stride_);
    if (task.sinks != nullptr) {
      add_sinks(task.sinks);
      store_rows<true>(task);
    } else {
      store_rows<false>(task);
    }
  }

  /// Adds a sink as one more score without a value: maximum_ becomes the maximum with it, tile_maximum_ holds the sum
  /// with it, and rescale_ the factor that the sums of values need.
  FLASHMASK_INLINE void add_sinks(const float* sinks) {
    for (int q = 0; q < kTile; q += Isa::lanes) {
      const Vec sink = Isa::mul(Isa::load(sinks + q), Isa::broadcast(kLog2E));
      const Vec old = Isa::load(maximum_ + q), sum = Isa::load(sum_ + q);
      // This order of operands keeps a NaN out of the maximum; the sum carries it.
      const Vec top = Isa::max(Isa::max(sink, old), Isa::broadcast(kLowest));
      const Vec rescale = Isa::exp2(Isa::sub(old, top));
      Isa::store(maximum_ + q, top);
      Isa::store(rescale_ + q, rescale);
      Isa::store(tile_maximum_ + q, Isa::add(Isa::mul(sum, rescale), Isa::exp2(Isa::sub(sink, top))));
    }
  }

  template <bool Sinks>
  FLASHMASK_INLINE void store_rows(const ForwardTask& task) {
    const float* const sums = Sinks ? tile_maximum_ : sum_;
    float factors[kTile];
    for (int q = 0; q < rows_; ++q) {
      const bool sees_nothing = sum_[q] == 0.0f;
      const float scale = Sinks ? task.dropout.scale * rescale_[q] : task.dropout.scale;
      factors[q] = sees_nothing ? 0.0f : scale / sums[q];
      const float of_nothing = Sinks ? task.sinks[q] : -kInfinity;
      task.lse[row_token_ + q] = sees_nothing ? of_nothing : (maximum_[q] + log2f(sums[q])) * kLn2;
    }
    if (task.max_scores != nullptr)
      for (int q = 0; q < rows_; ++q) task.max_scores[row_token_ + q] = largest_[q] * kLn2;
    copies_.store_rows(task.o, row_token_, rows_, {output_, value_stride_, factors}, task.sizes.value_dim);
  }

  /// Returns the probabilities, which overwrite the scores: no unit is stored past the scores it is made of.
  FLASHMASK_INLINE Unit* probabilities() { return reinterpret_cast<Unit*>(scores_); }

  const std::int64_t units_, value_stride_, value_columns_, key_stride_;
  const TileCopies<Isa>& copies_;
  std::size_t used_;
  Unit *queries_, *keys_, *values_;
  float *scores_, *output_, *maximum_, *sum_, *tile_maximum_, *rescale_, *largest_;
  std::int64_t row0_ = 0, row_token_ = 0;
  int rows_ = 0;
  Sum output_sums_[Blocks::count];  ///< whether anything was added to the output of a block of queries
  Prefetch output_rows_, next_[3], next_bias_;
  VisibleLines<kTile> bits_, kept_;
  TileExtent<Isa, kTile> extent_;
  TileChange<Isa> change_;
  TilePositions<Isa, kTile> query_positions_, key_positions_;
  BiasTile<Isa, kTile, kTile, true> bias_;
  SideValues<Isa, kTile, true> of_keys_;
  SideValues<Isa, kTile, false> of_queries_;
};

}  // namespace flashmask::cpu
