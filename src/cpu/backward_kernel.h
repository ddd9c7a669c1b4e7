// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/bias_tile.h"
#include "cpu/dropout_words.h"
#include "cpu/kernel_tasks.h"
#include "cpu/prefetch.h"
#include "cpu/register_tile.h"
#include "cpu/row_lse.h"
#include "cpu/score_change.h"
#include "cpu/tile_extent.h"
#include "cpu/tile_memory.h"

namespace flashmask::cpu {

/// Computes the gradients of one column tile (FlashMask, algorithm 2): keys and values stay, query row tiles pass by.
/// Lines are queries, lanes are keys. dK and dV are local; dQ is added to in ascending order of column tiles
/// (GradQueryTurns). There are five products per tile; the exponential is computed in the registers of the first, dS in
/// those of the second.
template <class Isa>
class BackwardKernel {
 public:
  static std::size_t scratch_bytes(int head_dim, int value_dim, bool has_bias_tensor) {
    HeadSizes sizes{};
    sizes.has_bias_tensor = has_bias_tensor;
    sizes.head_dim = head_dim;
    sizes.value_dim = value_dim;
    return BackwardKernel(sizes, nullptr).used_;
  }

  static std::int64_t padded_head_dim(int head_dim) { return round_up_lanes<Isa>(head_dim); }

  /// Computes row statistics; rows that exist only to fill the last tile get those of a row that sees nothing. Where
  /// lse is NaN, it alone carries the NaN: a NaN in Δ would reach keys that the row does not see.
  static void prepare(const PrepareTask& task) {
    with_elements<Isa>(task.sizes.dtype,
                       [&](auto element) FLASHMASK_INLINE_LAMBDA { prepare_rows<decltype(element)>(task); });
  }

  static void run(const BackwardTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    BackwardKernel kernel(task.sizes, task.scratch);
    kernel.begin(task);
    for (int h = 0; h < task.head_count; ++h) {
      const BackwardHead& head = task.heads[h];
      for (std::int64_t i = 0; i < head.runs.count; ++i) {
        const Run run = head.runs.runs[i];
        for (std::int64_t tile = run.begin; tile < run.end; ++tile) {
          const bool last = h + 1 == task.head_count && i + 1 == head.runs.count && tile + 1 == run.end;
          kernel.prefetch_next(task, head, tile, last);
          kernel.visit(task, head, tile, run.kind);
        }
      }
    }
    kernel.finish(task);
    Isa::fence();
  }

 private:
  using Unit = typename Isa::Unit;
  using Vec = typename Isa::Vec;
  static constexpr int kQueries = kBackwardRows;
  static constexpr int kKeys = kBackwardColumns;
  using QueryBlocks = RowBlocks<Isa, kQueries>;
  using KeyBlocks = RowBlocks<Isa, kWordBits>;  ///< blocks of one half
  /// The mask of a tile comes in halves of 64 keys, one word per query.
  static constexpr int kHalves = kKeys / kWordBits;
  static constexpr int kHalfPanels = kWordBits / kPanel<Isa>;
  /// Cache lines of each next operand to prefetch per register tile.
  static constexpr int kPrefetchLines = 32;
  static constexpr float kLog2E = 1.44269504088896340736f;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  /// Strides of P and dS, a cache line longer than the keys, so that rows do not share a cache set. The first is for
  /// units of reductions over queries, [query / step][key]; the second is for units along a row of keys,
  /// [query][key / step].
  static constexpr std::int64_t kScoreStride = kKeys + 16;
  static constexpr std::int64_t kRowStride = kKeys / Isa::step + 16;

  /// One factor for every row of a store.
  template <int Rows>
  struct Factors {
    explicit Factors(float factor) {
      for (float& each : at) each = factor;
    }
    float at[Rows];
  };

  template <class In>
  static void prepare_rows(const PrepareTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    const std::int64_t row0 = task.row_tile * kQueries;
    const TokenRun rows = task.sizes.queries.at(row0, kQueries);
    for (int r = 0; r < kQueries; ++r) {
      const std::int64_t row = rows.first + r;
      const bool exists = r < rows.count;
      const float lse = exists ? task.lse[row] : -kInfinity;
      task.statistics.lse2[row0 + r] = lse_in_powers_of_two(lse);
      task.statistics.delta[row0 + r] =
          lse > -kInfinity ? dot_rows(row_of<In>(task.o, row), row_of<In>(task.grad_o, row), task.sizes.value_dim) -
                                 (task.grad_lse ? task.grad_lse[row] : 0.0f)
                           : 0.0f;
      if (exists && !task.visited) store_zeros<Isa>(row_of<In>(task.grad_q, row), task.sizes.head_dim);
    }
  }

  FLASHMASK_INLINE BackwardKernel(const HeadSizes& sizes, std::byte* memory)
      : key_units_(units_of<Isa>(sizes.head_dim)),
        value_units_(units_of<Isa>(sizes.value_dim)),
        key_stride_(local_stride<Isa>(sizes.head_dim)),
        value_stride_(local_stride<Isa>(sizes.value_dim)),
        key_columns_(round_up_lanes<Isa>(sizes.head_dim)),
        value_columns_(round_up_lanes<Isa>(sizes.value_dim)),
        scale_(sizes.gradient_scale),
        copies_(tile_copies<Isa>(sizes.dtype)) {
    Scratch scratch(memory);
    keys_transposed_ = scratch.take<Unit>(round_up_lanes<Isa>(key_units_) * kKeys);
    values_transposed_ = scratch.take<Unit>(round_up_lanes<Isa>(value_units_) * kKeys);
    keys_ = scratch.take<Unit>(key_stride_ * kKeys);
    queries_ = scratch.take<Unit>(key_stride_ * kQueries);
    grad_outputs_ = scratch.take<Unit>(value_stride_ * kQueries);
    // Where a unit is one element, the same tile serves reductions along its rows and over them.
    query_units_ = Isa::step == 1 ? queries_ : scratch.take<Unit>(key_stride_ * kQueries);
    grad_output_units_ = Isa::step == 1 ? grad_outputs_ : scratch.take<Unit>(value_stride_ * kQueries);
    probabilities_ = scratch.take<Unit>(kQueries / Isa::step * kScoreStride);
    grad_scores_ = scratch.take<Unit>(kQueries / Isa::step * kScoreStride);
    grad_score_rows_ = Isa::step == 1 ? grad_scores_ : scratch.take<Unit>(kQueries * kRowStride);
    grad_keys_ = scratch.take<float>(key_stride_ * kKeys);
    grad_values_ = scratch.take<float>(value_stride_ * kKeys);
    bias_.take(scratch, sizes.has_bias_tensor);
    used_ = scratch.used();
  }

  FLASHMASK_INLINE void begin(const BackwardTask& task) {
    column0_ = task.column_tile * kKeys;
    const TokenRun columns = task.sizes.keys.at(column0_, kKeys);
    column_token_ = columns.first;
    columns_ = static_cast<int>(columns.count);
    copies_.load_transposed(values_transposed_, grad_outputs_, value_stride_, task.v, column_token_, kKeys, columns_,
                            task.sizes.value_dim);
    Unit* keys = Isa::step == 1 ? keys_ : queries_;
    copies_.load_rows(keys, key_stride_, task.k, column_token_, 0, kKeys, columns_, task.sizes.head_dim);
    transpose_to_panels<Isa>(keys, key_stride_, keys_transposed_, kKeys, key_units_);
    if constexpr (Isa::step != 1)
      copies_.load_row_units(keys_, key_stride_, task.k, column_token_, 0, kKeys, columns_, task.sizes.head_dim);
    for (int i = 0; i < kHalves * KeyBlocks::count; ++i) sums_[i] = Sum::start;
  }

  FLASHMASK_INLINE void visit(const BackwardTask& task, const BackwardHead& head, std::int64_t row_tile,
                              TileKind kind) {
    const std::int64_t row0 = row_tile * kQueries;
    const TokenRun rows = task.sizes.queries.at(row0, kQueries);
    if (rows.count == 0) return;  // a tile of padding alone, which no row's sum waits for
    const TileBounds tile{row0, column0_, static_cast<int>(rows.count), columns_, rows.first, column_token_};
    change_ = TileChange<Isa>(task.sizes, head.bias);
    if (change_.biases()) {
      query_positions_.read(head.bias.query_positions, tile.row_token, head.bias.row_shift, tile.rows);
      key_positions_.read(head.bias.key_positions, tile.column_token, 0, columns_);
    }
    if (change_.computes()) {
      of_queries_.compute(task.sizes.function, head.bias.operands, false, tile.row_token, tile.rows);
      of_keys_.compute(task.sizes.function, head.bias.operands, true, tile.column_token, columns_);
    }
    if (change_.adds()) bias_.read(head.bias.values, tile);
    for (int half = 0; half < kHalves; ++half) extent_[half].set_whole();
    const bool dropout = head.dropout.threshold != 0;
    if (kind == TileKind::full && columns_ == kKeys && !dropout) {
      step<false, false>(task, head, tile);
    } else {
      for (int half = 0; half < kHalves; ++half) {
        read_mask(task.row_words, head.mask, tile, half, kind);
        if (task.trim) extent_[half].set_visible(bits_[half]);
      }
      if (dropout) {
        draw_dropout(head.dropout, tile);
        step<true, true>(task, head, tile);
      } else {
        step<true, false>(task, head, tile);
      }
    }
    add_grad_query(task, head, row_tile, tile);
  }

  FLASHMASK_INLINE void read_mask(ReadWords row_words, const PartialTiles& mask, const TileBounds& tile, int half,
                                  TileKind kind) {
    const int columns = tile.columns - half * kWordBits;
    for (int r = 0; r < kQueries; r += kWordBits) {
      std::uint64_t* word = bits_[half].word + r;
      if (kind == TileKind::full) {
        for (int i = 0; i < kWordBits; ++i) word[i] = low_bits(columns);
      } else {
        row_words(mask, {tile.row0 + r, tile.column0 + half * kWordBits, tile.rows - r, columns}, word);
      }
    }
  }

  FLASHMASK_INLINE void draw_dropout(const DropoutDraw& draw, const TileBounds& tile) {
    for (int half = 0; half < kHalves; ++half)
      for (int r = 0; r < kQueries; r += kWordBits)
        DropoutWords<Isa>::row_words(draw, tile.row_token + r, tile.column_token + half * kWordBits,
                                     kept_[half].word + r);
  }

  /// Starts to prefetch what the next visit, or the next task, reads first.
  FLASHMASK_INLINE void prefetch_next(const BackwardTask& task, const BackwardHead& head, std::int64_t row_tile,
                                      bool last) {
    if (last) {
      const TokenRun next = task.sizes.keys.at(task.next_column_tile * kKeys, kKeys);
      copies_.prefetch(next_[0], task.next_k, next, task.sizes.head_dim);
      copies_.prefetch(next_[1], task.next_v, next, task.sizes.value_dim);
    } else {
      const TokenRun next = task.sizes.queries.at((row_tile + 1) * kQueries, kQueries);
      copies_.prefetch(next_[0], head.q, next, task.sizes.head_dim);
      copies_.prefetch(next_[1], head.grad_o, next, task.sizes.value_dim);
    }
  }

  template <bool Masked, bool Dropout>
  FLASHMASK_INLINE void step(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile) {
    load_queries(task, head, tile);
    for (int half = 0; half < kHalves; ++half) grad_score<Masked, Dropout>(task, head, tile, half);
    if (!task.key_gradients) return;
    // dV += Pᵀ dO, dK += dSᵀ Q
    accumulate_keys(grad_values_, value_stride_, value_columns_, probabilities_, grad_output_units_);
    accumulate_keys(grad_keys_, key_stride_, key_columns_, grad_scores_, query_units_);
    for (int i = 0; i < kHalves * KeyBlocks::count; ++i)
      if (queries_of_block(i).begin < queries_of_block(i).end) sums_[i] = Sum::go_on;
  }

  /// Returns the queries that see anything of a block of keys; blocks are counted through both halves.
  FLASHMASK_INLINE typename TileExtent<Isa, kQueries>::Range queries_of_block(int block) const {
    return extent_[block / KeyBlocks::count].needed[block % KeyBlocks::count];
  }

  /// Returns the keys from the first to the last that a block of queries sees.
  FLASHMASK_INLINE typename TileExtent<Isa, kQueries>::Range keys_of_block(int block) const {
    typename TileExtent<Isa, kQueries>::Range keys{kKeys, 0};
    for (int half = 0; half < kHalves; ++half) {
      const auto lanes = extent_[half].lanes(block);
      if (lanes.begin >= lanes.end) continue;
      if (keys.end == 0) keys.begin = half * kWordBits + lanes.begin;
      keys.end = half * kWordBits + lanes.end;
    }
    return keys;
  }

  FLASHMASK_INLINE void load_queries(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile) {
    int begin = kQueries, end = 0;
    for (int half = 0; half < kHalves; ++half) {
      begin = extent_[half].lines.begin < begin ? extent_[half].lines.begin : begin;
      end = extent_[half].lines.end > end ? extent_[half].lines.end : end;
    }
    // Loads whole register tiles: a NaN left behind in a row that sees nothing would survive its product with P = 0.
    begin -= begin % QueryBlocks::size;
    end = (end + QueryBlocks::size - 1) / QueryBlocks::size * QueryBlocks::size;
    end = end < kQueries ? end : kQueries;
    copies_.load_rows(queries_, key_stride_, head.q, tile.row_token, begin, end, tile.rows, task.sizes.head_dim);
    copies_.load_rows(grad_outputs_, value_stride_, head.grad_o, tile.row_token, begin, end, tile.rows,
                      task.sizes.value_dim);
    if constexpr (Isa::step != 1) {
      copies_.load_row_units(query_units_, key_stride_, head.q, tile.row_token, begin, end, tile.rows,
                             task.sizes.head_dim);
      copies_.load_row_units(grad_output_units_, value_stride_, head.grad_o, tile.row_token, begin, end, tile.rows,
                             task.sizes.value_dim);
    }
  }

  /// Computes P = 2^(scale · log2(e) · q kᵀ − lse2) and dS = P ∘ (dO vᵀ − Δ), one register tile of each in turn; of
  /// changed scores where there are changes, and dS is that of the scores ahead of them. With
  /// dropout, P keeps its dropped elements only within dS = P ∘ (D ∘ dO vᵀ − Δ), where D is 0 or the scale of what is
  /// kept.
  template <bool Masked, bool Dropout>
  FLASHMASK_INLINE void grad_score(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile,
                                   int half) {
    for (int panel = 0; panel < kHalfPanels; ++panel) {
      const int key_panel = half * kHalfPanels + panel;
      const Panel<Unit> keys{keys_transposed_ + key_panel * round_up_lanes<Isa>(key_units_) * kPanel<Isa>, kPanel<Isa>};
      const Panel<Unit> values{values_transposed_ + key_panel * round_up_lanes<Isa>(value_units_) * kPanel<Isa>,
                               kPanel<Isa>};
      for (int block = 0; block < QueryBlocks::count; ++block) {
        QueryBlocks::with_rows(block, [&](auto rows) FLASHMASK_INLINE_LAMBDA {
          if (extent_[half].active(block, panel)) {
            for (Prefetch& next : next_) next.fetch(kPrefetchLines);
            register_tile_of_scores<Masked, Dropout, rows.value>(task, head, tile, key_panel, QueryBlocks::begin(block),
                                                                 keys, values);
            return;
          }
          if (is_summed(block, half, panel)) clear_register_tile<rows.value>(key_panel, QueryBlocks::begin(block));
          if (head.grad_bias.data != nullptr)
            write_bias_gradient<rows.value>(head.grad_bias, tile, key_panel, QueryBlocks::begin(block),
                                            zero_accumulators<Isa, rows.value, Isa::vectors>());
        });
      }
    }
  }

  template <bool Masked, bool Dropout, int Rows>
  FLASHMASK_INLINE void register_tile_of_scores(const BackwardTask& task, const BackwardHead& head,
                                                const TileBounds& tile, int panel, int q0, Panel<Unit> keys,
                                                Panel<Unit> values) {
    Accumulators<Isa, Rows, Isa::vectors> p =
        register_tile<Isa, Rows, Isa::vectors>({queries_ + q0 * key_stride_, key_stride_, 1}, keys, key_units_);
    alignas(64) float softmax[Rows][kPanel<Isa>];      // P, times the slopes of changed scores where they have any
    alignas(64) float plain[Rows][kPanel<Isa>];        // P, where they have, for the gradient of a bias
    alignas(64) float bias_slopes[Rows][kPanel<Isa>];  // where the change has more steps behind a bias
    if (change_.changes())
      change_.change(p,
                     {query_positions_.at + q0,
                      key_positions_.at + panel * kPanel<Isa>,
                      bias_.at(q0, panel * kPanel<Isa>),
                      bias_.line_stride(),
                      {of_queries_.at(q0),
                       of_keys_.at(panel * kPanel<Isa>),
                       of_queries_.kSlotStride,
                       of_keys_.kSlotStride,
                       false,
                       tile.rows - q0,
                       {}}},
                     {softmax[0], bias_slopes[0]});
    if (change_.has_slopes()) {
      exponentiate<Masked, Dropout, true>(head, tile, panel, q0, p, softmax, plain);
    } else {
      exponentiate<Masked, Dropout, false>(head, tile, panel, q0, p, softmax, plain);
    }
    store_register_tile(probabilities_, panel, q0, p);

    Accumulators<Isa, Rows, Isa::vectors> ds = register_tile<Isa, Rows, Isa::vectors>(
        {grad_outputs_ + q0 * value_stride_, value_stride_, 1}, values, value_units_);
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      const Vec delta = Isa::broadcast(head.statistics.delta[tile.row0 + q0 + r]);
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        Vec grad_p = ds.v[r][v];
        if constexpr (Dropout)
          grad_p = Isa::select(kept_bits(panel, q0 + r, v), Isa::mul(grad_p, Isa::broadcast(head.dropout.scale)),
                               Isa::broadcast(0.0f));
        ds.v[r][v] = Isa::sub(grad_p, delta);
      });
    });
    if (change_.has_bias_slopes()) follow(plain[0], bias_slopes[0], Rows * kPanel<Isa>);
    if (change_.adds())
      store_bias_gradient<Rows>(task, head, tile, panel, q0, ds, change_.has_slopes() ? plain : softmax);
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        ds.v[r][v] = Isa::mul(Isa::load(softmax[r] + v * Isa::lanes), ds.v[r][v]);
      });
    });
    store_register_tile(grad_scores_, panel, q0, ds);
    store_register_tile_rows(panel, q0, ds);
  }

  /// Stores, or adds to a sum, the gradients of a register tile's changed scores: `p` times what `factors` holds.
  template <int Rows>
  FLASHMASK_INLINE void store_bias_gradient(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile,
                                            int panel, int q0, const Accumulators<Isa, Rows, Isa::vectors>& factors,
                                            const float (&p)[Rows][kPanel<Isa>]) {
    const int key0 = panel * kPanel<Isa>;
    if (task.bias_sum != nullptr) {
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          float* const sum = task.bias_sum + (q0 + r) * kKeys + key0 + v * Isa::lanes;
          Isa::store(sum, Isa::fma(Isa::load(p[r] + v * Isa::lanes), factors.v[r][v], Isa::load(sum)));
        });
      });
    } else if (head.grad_bias.data != nullptr) {
      Accumulators<Isa, Rows, Isa::vectors> gradients;
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          gradients.v[r][v] = Isa::mul(Isa::load(p[r] + v * Isa::lanes), factors.v[r][v]);
        });
      });
      write_bias_gradient<Rows>(head.grad_bias, tile, panel, q0, gradients);
    }
  }

  /// Not inlined: its three dtypes would stand in the kernel for every size of register tiles, masked and not.
  template <int Rows>
  [[gnu::noinline]] static void write_bias_gradient(const HeadValueGradients& to, const TileBounds& tile, int panel,
                                                    int q0, const Accumulators<Isa, Rows, Isa::vectors>& gradients) {
    with_bias_type(to.dtype, to.data, [&](auto* rows) FLASHMASK_INLINE_LAMBDA {
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        if (q0 + r >= tile.rows) return;
        auto* const row = rows + (tile.row_token + q0 + r) * to.row_stride + tile.column_token;
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          const int key = panel * kPanel<Isa> + v * Isa::lanes, left = tile.columns - key;
          if (left >= Isa::lanes) {
            Isa::narrow(row + key, gradients.v[r][v]);
          } else if (left > 0) {
            Isa::narrow_tail(row + key, gradients.v[r][v], left);
          }
        });
      });
    });
  }

  /// Multiplies P by slopes; one that is not finite is of no consequence where P is 0.
  static FLASHMASK_INLINE void follow(float* p, const float* slopes, int count) {
    for (int i = 0; i < count; i += Isa::lanes) Isa::store(p + i, followed(Isa::load(p + i), slopes + i));
  }
  static FLASHMASK_INLINE Vec followed(Vec p, const float* slopes) {
    return Isa::select(Isa::greater(p, Isa::broadcast(0.0f)), Isa::mul(p, Isa::load(slopes)), p);
  }

  /// Turns scores into P in place. `softmax` also gets it, or P times what it holds where that is slopes; then `plain`
  /// gets P.
  template <bool Masked, bool Dropout, bool Slopes, int Rows>
  FLASHMASK_INLINE void exponentiate(const BackwardHead& head, const TileBounds& tile, int panel, int q0,
                                     Accumulators<Isa, Rows, Isa::vectors>& p, float (&softmax)[Rows][kPanel<Isa>],
                                     float (&plain)[Rows][kPanel<Isa>]) {
    const Vec scale = Isa::broadcast(change_.scale() * kLog2E);
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      const Vec lse2 = Isa::broadcast(head.statistics.lse2[tile.row0 + q0 + r]);
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        float* const kept = softmax[r] + v * Isa::lanes;
        Vec x = Isa::exp2(Isa::sub(Isa::mul(p.v[r][v], scale), lse2));
        if constexpr (Masked)
          x = Isa::select(
              bits_[panel / kHalfPanels].word[q0 + r] >> (panel % kHalfPanels * kPanel<Isa> + v * Isa::lanes), x,
              Isa::broadcast(0.0f));
        if constexpr (Slopes) Isa::store(plain[r] + v * Isa::lanes, x);
        Isa::store(kept, Slopes ? followed(x, kept) : x);
        if constexpr (Dropout) x = Isa::select(kept_bits(panel, q0 + r, v), x, Isa::broadcast(0.0f));
        p.v[r][v] = x;
      });
    });
  }

  FLASHMASK_INLINE std::uint64_t kept_bits(int panel, int query, int vector) const {
    return kept_[panel / kHalfPanels].word[query] >> (panel % kHalfPanels * kPanel<Isa> + vector * Isa::lanes);
  }

  template <int Rows>
  FLASHMASK_INLINE void store_register_tile(Unit* tile, int panel, int q0,
                                            const Accumulators<Isa, Rows, Isa::vectors>& x) {
    unrolled<Rows / 2>([&](auto pair) FLASHMASK_INLINE_LAMBDA {
      constexpr int r = 2 * pair.value;
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        Isa::store_row_pair(tile + (q0 + r) / Isa::step * kScoreStride + panel * kPanel<Isa> + v * Isa::lanes,
                            kScoreStride, x.v[r][v], x.v[r + 1][v]);
      });
    });
  }

  /// Stores dS a second time, for the reduction along its rows, where that needs another layout.
  template <int Rows>
  FLASHMASK_INLINE void store_register_tile_rows(int panel, int q0, const Accumulators<Isa, Rows, Isa::vectors>& x) {
    if constexpr (Isa::step != 1) {
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          const int lane = panel * kPanel<Isa> + v * Isa::lanes;
          Isa::store_row(grad_score_rows_ + (q0 + r) * kRowStride + lane / Isa::step, x.v[r][v]);
        });
      });
    }
  }

  /// Whether later products sum over a register tile that holds nothing visible: dV and dK sum from the first to the
  /// last query that sees any of a block of keys, dQ from the first to the last key that a block of queries sees.
  FLASHMASK_INLINE bool is_summed(int block, int half, int panel) const {
    const int lane = panel * kPanel<Isa>, key = half * kWordBits + lane;
    const auto keys = keys_of_block(block);
    if (keys.begin < key + kPanel<Isa> && key < keys.end) return true;
    for (int i = 0; i < KeyBlocks::count; ++i) {
      const auto queries = extent_[half].needed[i];
      if (KeyBlocks::begin(i) < lane + kPanel<Isa> && lane < KeyBlocks::end(i) &&
          queries.begin < QueryBlocks::end(block) && QueryBlocks::begin(block) < queries.end)
        return true;
    }
    return false;
  }

  template <int Rows>
  FLASHMASK_INLINE void clear_register_tile(int panel, int q0) {
    Accumulators<Isa, Rows, Isa::vectors> zero;
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { zero.v[r][v] = Isa::broadcast(0.0f); });
    });
    store_register_tile(probabilities_, panel, q0, zero);
    store_register_tile(grad_scores_, panel, q0, zero);
    store_register_tile_rows(panel, q0, zero);
  }

  /// sum[key] += Σ_query weight[query][key] · rows[query]
  FLASHMASK_INLINE void accumulate_keys(float* sum, std::int64_t stride, std::int64_t columns, const Unit* weights,
                                        const Unit* rows) {
    for (std::int64_t column = 0; column < columns; column += kPanel<Isa>) {
      for (int i = 0; i < kHalves * KeyBlocks::count; ++i) {
        const int block = i % KeyBlocks::count;
        const int begin = queries_of_block(i).begin / Isa::step;
        const int end = (queries_of_block(i).end + Isa::step - 1) / Isa::step;
        if (begin >= end) continue;
        const int key = i / KeyBlocks::count * kWordBits + KeyBlocks::begin(block);
        accumulate_block<Isa, kWordBits>(
            sum + key * stride, stride, block, {weights + begin * kScoreStride + key, 1, kScoreStride},
            {rows + begin * stride + column, stride}, end - begin, column, columns, sums_[i]);
      }
    }
  }

  /// Adds dQ[query] += dS k in this column tile's turn; the last one to add scales and stores the gradient.
  FLASHMASK_INLINE void add_grad_query(const BackwardTask& task, const BackwardHead& head, std::int64_t row_tile,
                                       const TileBounds& tile) {
    if (head.grad_q_sum == nullptr) return;
    float* sum = head.grad_q_sum + row_tile * kQueries * key_columns_;
    const Turn turn = await_turn(*head.turns, row_tile, task.column_tile);
    const Sum mode = turn.first ? Sum::start : Sum::go_on;
    for (std::int64_t column = 0; column < key_columns_; column += kPanel<Isa>) {
      for (int block = 0; block < QueryBlocks::count; ++block) {
        const auto keys = keys_of_block(block);
        if (keys.begin >= keys.end && !turn.first) continue;
        const int begin = keys.begin / Isa::step;
        const int end = (keys.end + Isa::step - 1) / Isa::step;
        const int q = QueryBlocks::begin(block);
        accumulate_block<Isa, kQueries>(
            sum + q * key_columns_, key_columns_, block, {grad_score_rows_ + q * kRowStride + begin, kRowStride, 1},
            {keys_ + begin * key_stride_ + column, key_stride_}, end - begin, column, key_columns_, mode);
      }
    }
    if (turn.last) {
      const Factors<kQueries> factors(scale_);
      copies_.store_rows(head.grad_q, tile.row_token, tile.rows, {sum, key_columns_, factors.at}, task.sizes.head_dim);
    }
    pass_turn(*head.turns, row_tile);
  }

  FLASHMASK_INLINE void finish(const BackwardTask& task) {
    if (!task.key_gradients) return;
    const auto store = task.float32_gradients ? store_rows<Isa, float> : copies_.store_rows;
    const Factors<KeyBlocks::size> of_keys(scale_), of_values(task.dropout_scale);
    for (int i = 0; i < kHalves * KeyBlocks::count; ++i) {
      const int block = i % KeyBlocks::count, key = i / KeyBlocks::count * kWordBits + KeyBlocks::begin(block);
      const int end = i / KeyBlocks::count * kWordBits + KeyBlocks::end(block);
      const int count = (end < columns_ ? end : columns_) - key;
      const bool sums = sums_[i] != Sum::start;
      store(task.grad_k, column_token_ + key, count,
            {sums ? grad_keys_ + key * key_stride_ : nullptr, key_stride_, of_keys.at}, task.sizes.head_dim);
      store(task.grad_v, column_token_ + key, count,
            {sums ? grad_values_ + key * value_stride_ : nullptr, value_stride_, of_values.at}, task.sizes.value_dim);
    }
  }

  template <class In>
  static FLASHMASK_INLINE float dot_rows(const In* a, const In* b, int width) {
    Vec sum = Isa::broadcast(0.0f);
    int c = 0;
    for (; c + Isa::lanes <= width; c += Isa::lanes) sum = Isa::fma(Isa::widen(a + c), Isa::widen(b + c), sum);
    if (c < width) sum = Isa::fma(Isa::widen_tail(a + c, width - c), Isa::widen_tail(b + c, width - c), sum);
    return Isa::sum(sum);
  }

  const std::int64_t key_units_, value_units_, key_stride_, value_stride_, key_columns_, value_columns_;
  const float scale_;
  const TileCopies<Isa>& copies_;
  std::size_t used_;
  Unit *keys_transposed_, *values_transposed_, *keys_, *queries_, *grad_outputs_, *query_units_, *grad_output_units_;
  Unit *probabilities_, *grad_scores_, *grad_score_rows_;
  float *grad_keys_, *grad_values_;
  std::int64_t column0_ = 0, column_token_ = 0;
  int columns_ = 0;
  Prefetch next_[2];
  VisibleLines<kQueries> bits_[kHalves], kept_[kHalves];
  TileExtent<Isa, kQueries> extent_[kHalves];
  TileChange<Isa> change_;
  TilePositions<Isa, kQueries> query_positions_;
  TilePositions<Isa, kKeys> key_positions_;
  BiasTile<Isa, kQueries, kKeys, false> bias_;
  SideValues<Isa, kQueries, true> of_queries_;
  SideValues<Isa, kKeys, false> of_keys_;
  Sum sums_[kHalves * KeyBlocks::count];  ///< whether anything was added to the gradients of a block of keys
};

}  // namespace flashmask::cpu
