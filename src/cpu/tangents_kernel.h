// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include <cstdint>
#include <limits>

#include "cpu/bias_tile.h"
#include "cpu/dropout_words.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"
#include "cpu/row_lse.h"
#include "cpu/score_change.h"
#include "cpu/tile_extent.h"
#include "cpu/tile_memory.h"
#include "cpu/tile_operands.h"

namespace flashmask::cpu {

/// Computes the tangents of o and lse for one row tile (docs/tangents.md), with scores held transposed as in the
/// forward: lines are keys, lanes are queries. Probabilities P come from the lse of the forward, so nothing is
/// rescaled. There are five products per tile: k qᵀ, k q̇ᵀ + k̇ qᵀ, which make the tangents Ṡ of the scores, and
/// (P ∘ (Ṡ − r)) v + P v̇, where r is a number of the row, its mean of Ṡ in the first tile. A product of a tangent that
/// is absent is left out.
template <class Isa>
class TangentsKernel {
 public:
  static std::size_t scratch_bytes(int head_dim, int value_dim, bool has_bias_tensor) {
    TangentsTask task{};
    task.sizes.has_bias_tensor = has_bias_tensor;
    task.sizes.head_dim = head_dim;
    task.sizes.value_dim = value_dim;
    return TangentsKernel(task).used_;
  }

  static void run(const TangentsTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    TangentsKernel kernel(task);
    kernel.begin();
    for (std::int64_t i = 0; i < task.runs.count; ++i) {
      const Run run = task.runs.runs[i];
      for (std::int64_t tile = run.begin; tile < run.end; ++tile) kernel.visit(tile, run.kind);
    }
    kernel.finish();
    Isa::fence();
  }

 private:
  using Unit = typename Isa::Unit;
  using Vec = typename Isa::Vec;
  static constexpr int kTile = kForwardRows;
  using Blocks = RowBlocks<Isa, kTile>;
  static constexpr int kPanels = kTile / kPanel<Isa>;
  static constexpr float kLog2E = 1.44269504088896340736f;

  FLASHMASK_INLINE explicit TangentsKernel(const TangentsTask& task)
      : task_(task),
        units_(units_of<Isa>(task.sizes.head_dim)),
        value_stride_(local_stride<Isa>(task.sizes.value_dim)),
        value_columns_(round_up_lanes<Isa>(task.sizes.value_dim)),
        key_stride_(local_stride<Isa>(task.sizes.head_dim)),
        copies_(tile_copies<Isa>(task.sizes.dtype)) {
    Scratch scratch(task.scratch);
    queries_ = scratch.take<Unit>(round_up_lanes<Isa>(units_) * kTile);
    tangent_queries_ = scratch.take<Unit>(round_up_lanes<Isa>(units_) * kTile);
    keys_ = scratch.take<Unit>(key_stride_ * kTile);
    tangent_keys_ = scratch.take<Unit>(key_stride_ * kTile);
    values_ = scratch.take<Unit>(value_stride_ * kTile);
    tangent_values_ = scratch.take<Unit>(value_stride_ * kTile);
    probabilities_ = scratch.take<float>(kTile * kTile);
    score_tangents_ = scratch.take<float>(kTile * kTile);
    output_ = scratch.take<float>(value_stride_ * kTile);
    lse2_ = scratch.take<float>(kTile);
    reference_ = scratch.take<float>(kTile);
    sum_ = scratch.take<float>(kTile);
    bias_.take(scratch, task.sizes.has_bias_tensor);
    used_ = scratch.used();
  }

  /// Whether scores have tangents; if not, only P v̇ is left.
  FLASHMASK_INLINE bool scores_move() const {
    return task_.tangent_q.data != nullptr || task_.tangent_k.data != nullptr;
  }
  FLASHMASK_INLINE bool values_move() const { return task_.tangent_v.data != nullptr; }

  FLASHMASK_INLINE void begin() {
    row0_ = task_.row_tile * kTile;
    const TokenRun rows = task_.sizes.queries.at(row0_, kTile);
    row_token_ = rows.first;
    rows_ = static_cast<int>(rows.count);
    change_ = TileChange<Isa>(task_.sizes, task_.bias);
    if (change_.biases()) query_positions_.read(task_.bias.query_positions, row_token_, task_.bias.row_shift, rows_);
    if (change_.computes()) of_queries_.compute(task_.sizes.function, task_.bias.operands, false, row_token_, rows_);
    if (task_.runs.count != 0) load_queries();
    for (int q = 0; q < kTile; ++q)
      lse2_[q] = lse_in_powers_of_two(q < rows_ ? task_.lse[row_token_ + q] : -std::numeric_limits<float>::infinity());
    fill_zero<Isa>(reference_, kTile);
    fill_zero<Isa>(sum_, kTile);
    for (Sum& sum : output_sums_) sum = Sum::start;
  }

  FLASHMASK_INLINE void load_queries() {
    const int width = task_.sizes.head_dim;
    copies_.load_transposed(queries_, keys_, key_stride_, task_.q, row_token_, kTile, rows_, width);
    if (task_.tangent_q.data != nullptr)
      copies_.load_transposed(tangent_queries_, keys_, key_stride_, task_.tangent_q, row_token_, kTile, rows_, width);
  }

  FLASHMASK_INLINE void visit(std::int64_t column_tile, TileKind kind) {
    const std::int64_t column0 = column_tile * kTile;
    const TokenRun columns = task_.sizes.keys.at(column0, kTile);
    const TileBounds tile{row0_, column0, rows_, static_cast<int>(columns.count), row_token_, columns.first};
    extent_.set_whole();
    if (change_.biases()) key_positions_.read(task_.bias.key_positions, tile.column_token, 0, tile.columns);
    if (change_.computes())
      of_keys_.compute(task_.sizes.function, task_.bias.operands, true, tile.column_token, tile.columns);
    if (change_.adds()) bias_.read(task_.bias.values, tile);
    if (kind == TileKind::full && tile.columns == kTile) {
      step<false>(tile);
      return;
    }
    if (kind == TileKind::full) {
      for (int c = 0; c < kTile; ++c) bits_.word[c] = c < tile.columns ? ~0ULL : 0;
    } else {
      task_.column_words(task_.mask, tile, bits_.word);
    }
    if (task_.trim) extent_.set_visible(bits_);
    step<true>(tile);
  }

  template <bool Masked>
  FLASHMASK_INLINE void step(const TileBounds& tile) {
    score<Masked>(tile);
    if (scores_move()) find_references();
    if (task_.dropout.threshold == 0) {
      weigh<false>();
    } else {
      DropoutWords<Isa>::column_words(task_.dropout, tile.row_token, tile.column_token, kept_.word);
      weigh<true>();
    }
    accumulate(tile);
  }

  FLASHMASK_INLINE TileCopy<Unit> copy_to(Unit* copy, std::int64_t stride) const {
    return {copy, stride, extent_.lines.begin, extent_.lines.end};
  }

  /// Computes probabilities_[key][query] = 2^(scale · log2(e) · k qᵀ − lse2), 0 where masked, and score_tangents_.
  template <bool Masked>
  FLASHMASK_INLINE void score(const TileBounds& tile) {
    const int width = task_.sizes.head_dim;
    const auto keys = key_operand<Isa, kTile>(copies_, task_.k, tile, width, copy_to(keys_, key_stride_));
    Broadcast<Unit> tangent_keys{};
    if (task_.tangent_k.data != nullptr)
      tangent_keys =
          key_operand<Isa, kTile>(copies_, task_.tangent_k, tile, width, copy_to(tangent_keys_, key_stride_));
    for (int panel = 0; panel < kPanels; ++panel) {
      const std::int64_t of_panel = panel * round_up_lanes<Isa>(units_) * kPanel<Isa>;
      extent_.register_tiles(panel, [&](auto rows, auto vectors, int key0, int lane0) FLASHMASK_INLINE_LAMBDA {
        score_register_tile<Masked, rows.value, vectors.value>(key0, lane0, keys, tangent_keys,
                                                               of_panel + lane0 - panel * kPanel<Isa>);
      });
    }
  }

  /// `column`: where the queries of the register tile lie among the transposed ones.
  template <bool Masked, int Rows, int Vectors>
  FLASHMASK_INLINE void score_register_tile(int key0, int lane0, Broadcast<Unit> keys, Broadcast<Unit> tangent_keys,
                                            std::int64_t column) {
    const Broadcast<Unit> of_keys{keys.data + key0 * keys.row_stride, keys.row_stride, 1};
    const Panel<Unit> queries{queries_ + column, kPanel<Isa>};
    alignas(64) float slopes[Rows][Vectors * Isa::lanes];  // of changed scores, where they have any
    // Not const: GCC 12 would keep constant aggregates in memory through the whole inner loop.
    Accumulators<Isa, Rows, Vectors> scores = register_tile<Isa, Rows, Vectors>(of_keys, queries, units_);
    if (change_.changes())
      change_.change(
          scores,
          {key_positions_.at + key0,
           query_positions_.at + lane0,
           bias_.at(key0, lane0),
           bias_.line_stride(),
           {of_keys_.at(key0), of_queries_.at(lane0), of_keys_.kSlotStride, of_queries_.kSlotStride, true, kTile, {}}},
          {slopes[0], nullptr});
    const Vec scale = Isa::broadcast(change_.scale() * kLog2E);
    unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
      const int lane = lane0 + v * Isa::lanes;
      const Vec lse2 = Isa::load(lse2_ + lane);
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        Vec p = Isa::exp2(Isa::sub(Isa::mul(scores.v[r][v], scale), lse2));
        if constexpr (Masked) p = Isa::select(bits_.word[key0 + r] >> lane, p, Isa::broadcast(0.0f));
        Isa::store(probabilities_ + (key0 + r) * kTile + lane, p);
      });
    });
    if (!scores_move()) return;

    Accumulators<Isa, Rows, Vectors> tangents = zero_accumulators<Isa, Rows, Vectors>();
    if (task_.tangent_q.data != nullptr)
      add_products(tangents, of_keys, Panel<Unit>{tangent_queries_ + column, kPanel<Isa>}, units_);
    if (task_.tangent_k.data != nullptr)
      add_products(tangents,
                   Broadcast<Unit>{tangent_keys.data + key0 * tangent_keys.row_stride, tangent_keys.row_stride, 1},
                   queries, units_);
    const Vec factor = Isa::broadcast(task_.sizes.gradient_scale);
    const bool has_slopes = change_.has_slopes();
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        Vec tangent = Isa::mul(tangents.v[r][v], factor);
        if (has_slopes) tangent = Isa::mul(tangent, Isa::load(slopes[r] + v * Isa::lanes));
        // Keys that nobody sees may not have been copied, and 0 times what was left there may be NaN.
        if constexpr (Masked)
          tangent = Isa::select(bits_.word[key0 + r] >> (lane0 + v * Isa::lanes), tangent, Isa::broadcast(0.0f));
        Isa::store(score_tangents_ + (key0 + r) * kTile + lane0 + v * Isa::lanes, tangent);
      });
    });
  }

  /// Calls body(key, whether the pair of keys is computed) for every second key, for the queries from `q` on.
  template <class Body>
  FLASHMASK_INLINE void each_pair(int q, const Body& body) const {
    for (int block = 0; block < Blocks::count; ++block) {
      const bool active = extent_.vector_active(block, q);
      for (int key = Blocks::begin(block); key < Blocks::end(block); key += 2) body(key, active);
    }
  }

  /// Sets the reference of queries that have none and see keys of this tile: the mean of their Ṡ in it. What is
  /// subtracted from every Ṡ of a row changes no result, and near the row's mean it leaves no large numbers to cancel.
  FLASHMASK_INLINE void find_references() {
    for (int q = 0; q < kTile; q += Isa::lanes) {
      const std::uint64_t missing = ~(found_ >> q) & low_bits(Isa::lanes);
      if (missing == 0) continue;
      Vec sum0 = Isa::broadcast(0.0f), sum1 = sum0, mean0 = sum0, mean1 = sum0;
      each_pair(q, [&](int key, bool active) FLASHMASK_INLINE_LAMBDA {
        if (!active) return;
        const Vec p0 = Isa::load(probabilities_ + key * kTile + q);
        const Vec p1 = Isa::load(probabilities_ + (key + 1) * kTile + q);
        sum0 = Isa::add(sum0, p0);
        sum1 = Isa::add(sum1, p1);
        mean0 = Isa::fma(p0, Isa::load(score_tangents_ + key * kTile + q), mean0);
        mean1 = Isa::fma(p1, Isa::load(score_tangents_ + (key + 1) * kTile + q), mean1);
      });
      const Vec sum = Isa::add(sum0, sum1);
      const std::uint64_t found = Isa::greater(sum, Isa::broadcast(0.0f)) & missing;
      Isa::store(reference_ + q, Isa::select(found, Isa::div(Isa::add(mean0, mean1), sum), Isa::load(reference_ + q)));
      found_ |= found << q;
    }
  }

  /// Turns Ṡ into P ∘ (Ṡ − r) and adds it to sum_[query], then stores it and P as units of a reduction over keys,
  /// [key / step][query], in place. What dropout drops counts in the sum, but not in the products that follow.
  template <bool Dropout>
  FLASHMASK_INLINE void weigh() {
    const bool scores_move = this->scores_move(), values_move = this->values_move();
    for (int q = 0; q < kTile; q += Isa::lanes) {
      const Vec reference = Isa::load(reference_ + q), zero = Isa::broadcast(0.0f);
      Vec even = Isa::load(sum_ + q), odd = zero;
      each_pair(q, [&](int key, bool active) FLASHMASK_INLINE_LAMBDA {
        Vec p0 = zero, p1 = zero, w0 = zero, w1 = zero;
        if (active) {
          p0 = Isa::load(probabilities_ + key * kTile + q);
          p1 = Isa::load(probabilities_ + (key + 1) * kTile + q);
          if (scores_move) {
            w0 = Isa::mul(p0, Isa::sub(Isa::load(score_tangents_ + key * kTile + q), reference));
            w1 = Isa::mul(p1, Isa::sub(Isa::load(score_tangents_ + (key + 1) * kTile + q), reference));
            even = Isa::add(even, w0);
            odd = Isa::add(odd, w1);
          }
          if constexpr (Dropout) {
            const std::uint64_t kept0 = kept_.word[key] >> q, kept1 = kept_.word[key + 1] >> q;
            p0 = Isa::select(kept0, p0, zero);
            p1 = Isa::select(kept1, p1, zero);
            w0 = Isa::select(kept0, w0, zero);
            w1 = Isa::select(kept1, w1, zero);
          }
        }
        const std::int64_t at = key / Isa::step * kTile + q;
        if (scores_move) Isa::store_row_pair(units(score_tangents_) + at, kTile, w0, w1);
        if (values_move) Isa::store_row_pair(units(probabilities_) + at, kTile, p0, p1);
      });
      Isa::store(sum_ + q, Isa::add(even, odd));
    }
  }

  /// Adds output_[query] += (P ∘ (Ṡ − r)) v + P v̇.
  FLASHMASK_INLINE void accumulate(const TileBounds& tile) {
    const int width = task_.sizes.value_dim;
    const bool scores_move = this->scores_move(), values_move = this->values_move();
    Panel<Unit> values{}, tangent_values{};
    if (scores_move) values = value_operand<Isa, kTile>(copies_, task_.v, tile, width, copy_to(values_, value_stride_));
    if (values_move)
      tangent_values =
          value_operand<Isa, kTile>(copies_, task_.tangent_v, tile, width, copy_to(tangent_values_, value_stride_));
    for (std::int64_t column = 0; column < value_columns_; column += kPanel<Isa>) {
      for (int block = 0; block < Blocks::count; ++block) {
        const int begin = extent_.needed[block].begin / Isa::step;
        const int end = (extent_.needed[block].end + Isa::step - 1) / Isa::step;
        if (begin >= end) continue;
        const int q = Blocks::begin(block), weights = begin * kTile + q;
        const auto rows_from = [&](const Panel<Unit>& rows) FLASHMASK_INLINE_LAMBDA {
          return Panel<Unit>{rows.data + begin * rows.stride + column, rows.stride};
        };
        accumulate_products<Isa, kTile>(
            output_ + q * value_stride_, value_stride_, block, column, value_columns_, output_sums_[block],
            [&](auto& acc) FLASHMASK_INLINE_LAMBDA {
              if (scores_move)
                add_products(acc, Broadcast<Unit>{units(score_tangents_) + weights, 1, kTile}, rows_from(values),
                             end - begin);
              if (values_move)
                add_products(acc, Broadcast<Unit>{units(probabilities_) + weights, 1, kTile}, rows_from(tangent_values),
                             end - begin);
            });
      }
    }
    for (int block = 0; block < Blocks::count; ++block)
      if (extent_.needed[block].begin < extent_.needed[block].end) output_sums_[block] = Sum::go_on;
  }

  FLASHMASK_INLINE void finish() {
    for (int block = 0; block < Blocks::count; ++block)
      if (output_sums_[block] == Sum::start)
        fill_zero<Isa>(output_ + Blocks::begin(block) * value_stride_,
                       (Blocks::end(block) - Blocks::begin(block)) * value_stride_);
    float excess[kTile], ones[kTile];
    for (int q = 0; q < rows_; ++q) {
      // A sink is a key whose score has no tangent: its share of the reference is missing in the sum.
      const float of_sink = task_.sinks == nullptr ? 0.0f : reference_[q] * exp2f(task_.sinks[q] * kLog2E - lse2_[q]);
      excess[q] = sum_[q] - of_sink;
      ones[q] = 1.0f;
      task_.tangent_lse[row_token_ + q] = reference_[q] + excess[q];
    }
    with_elements<Isa>(task_.sizes.dtype,
                       [&](auto element) FLASHMASK_INLINE_LAMBDA { subtract_outputs<decltype(element)>(excess); });
    copies_.store_rows(task_.tangent_o, row_token_, rows_, {output_, value_stride_, ones}, task_.sizes.value_dim);
  }

  /// Scales what dropout keeps, and subtracts (μ − r) o, where μ is the tangent of lse.
  template <class In>
  FLASHMASK_INLINE void subtract_outputs(const float* excess) {
    const int width = task_.sizes.value_dim;
    const Vec scale = Isa::broadcast(task_.dropout.scale);
    for (int q = 0; q < rows_; ++q) {
      const In* const o = row_of<In>(task_.o, row_token_ + q);
      float* const sum = output_ + q * value_stride_;
      const Vec factor = Isa::broadcast(-excess[q]);
      for (int c = 0; c < width; c += Isa::lanes) {
        const Vec x = c + Isa::lanes <= width ? Isa::widen(o + c) : Isa::widen_tail(o + c, width - c);
        Isa::store(sum + c, Isa::fma(factor, x, Isa::mul(scale, Isa::load(sum + c))));
      }
    }
  }

  static FLASHMASK_INLINE Unit* units(float* scores) { return reinterpret_cast<Unit*>(scores); }

  const TangentsTask& task_;
  const std::int64_t units_, value_stride_, value_columns_, key_stride_;
  const TileCopies<Isa>& copies_;
  std::size_t used_;
  Unit *queries_, *tangent_queries_, *keys_, *tangent_keys_, *values_, *tangent_values_;
  float *probabilities_, *score_tangents_;  ///< units once they are weighed: none is stored past what it is made of
  float *output_, *lse2_, *reference_, *sum_;
  std::int64_t row0_ = 0, row_token_ = 0;
  int rows_ = 0;
  std::uint64_t found_ = 0;  ///< queries that have a reference
  Sum output_sums_[Blocks::count];
  VisibleLines<kTile> bits_, kept_;
  TileExtent<Isa, kTile> extent_;
  TileChange<Isa> change_;
  TilePositions<Isa, kTile> query_positions_, key_positions_;
  BiasTile<Isa, kTile, kTile, true> bias_;
  SideValues<Isa, kTile, true> of_keys_;
  SideValues<Isa, kTile, false> of_queries_;
};

}  // namespace flashmask::cpu
