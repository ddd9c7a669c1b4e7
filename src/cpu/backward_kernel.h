#pragma once

#include <cstdint>
#include <limits>

#include "cpu/intervals_predicate.h"
#include "cpu/kernel_tasks.h"
#include "cpu/register_tile.h"
#include "cpu/tile_extent.h"
#include "cpu/tile_memory.h"

namespace flashmask::cpu {

/// Gradients of one column tile (FlashMask, algorithm 2): keys and values stay, query row tiles pass by. A line is a
/// query, a lane a key. dK and dV are local; dQ is added to in ascending order of column tiles (GradQueryTurns).
/// Five products a tile; the exponential happens in the registers of the first, dS in those of the second.
template <class Isa, class In, template <class> class Predicate>
class BackwardKernel {
 public:
  static std::size_t scratch_bytes(int head_dim, int value_dim) {
    HeadSizes sizes{};
    sizes.head_dim = head_dim;
    sizes.value_dim = value_dim;
    return BackwardKernel(sizes, nullptr).used_;
  }

  static std::int64_t padded_head_dim(int head_dim) { return round_up_lanes<Isa>(head_dim); }

  /// Row statistics; rows that exist only to fill the last tile get those of a row that sees nothing.
  static void prepare(const PrepareTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    const std::int64_t row0 = task.row_tile * kTile;
    for (std::int64_t row = row0; row < row0 + kTile; ++row) {
      const bool exists = row < task.sizes.query_length;
      const float lse = exists ? task.lse[row] : -kInfinity;
      const bool sees = lse != -kInfinity;
      task.statistics.lse2[row] = sees ? lse * kLog2E : kInfinity;
      task.statistics.delta[row] =
          sees ? dot_rows(row_of<In>(task.o, row), row_of<In>(task.grad_o, row), task.sizes.value_dim) -
                     (task.grad_lse ? task.grad_lse[row] : 0.0f)
               : 0.0f;
      if (exists && !task.visited) store_zero_row(row_of<In>(task.grad_q, row), task.sizes.head_dim);
    }
  }

  static void run(const BackwardTask& task) {
    [[maybe_unused]] typename Isa::FlushDenormals mode;
    BackwardKernel kernel(task.sizes, task.scratch);
    kernel.begin(task);
    for (int h = 0; h < task.head_count; ++h) {
      const BackwardHead& head = task.heads[h];
      for (std::int64_t i = 0; i < head.runs.count; ++i) {
        const Run run = head.runs.runs[i];
        for (std::int64_t tile = run.begin; tile < run.end; ++tile) kernel.visit(task, head, tile, run.kind);
      }
    }
    kernel.finish(task);
  }

 private:
  using Unit = typename Isa::Unit;
  using Vec = typename Isa::Vec;
  using Blocks = RowBlocks<Isa>;
  static constexpr int kPanels = kTile / kPanel<Isa>;
  static constexpr float kLog2E = 1.44269504088896340736f;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  /// Units of a row of dS.
  static constexpr std::int64_t kRowUnits = kTile / Isa::step;

  FLASHMASK_INLINE BackwardKernel(const HeadSizes& sizes, std::byte* memory)
      : key_units_(units_of<Isa>(sizes.head_dim)),
        value_units_(units_of<Isa>(sizes.value_dim)),
        key_stride_(local_stride<Isa>(sizes.head_dim)),
        value_stride_(local_stride<Isa>(sizes.value_dim)),
        key_columns_(round_up_lanes<Isa>(sizes.head_dim)),
        value_columns_(round_up_lanes<Isa>(sizes.value_dim)),
        scale_(sizes.scale) {
    Scratch scratch(memory);
    keys_transposed_ = scratch.take<Unit>(round_up_lanes<Isa>(key_units_) * kTile);
    values_transposed_ = scratch.take<Unit>(round_up_lanes<Isa>(value_units_) * kTile);
    keys_ = scratch.take<Unit>(key_stride_ * kTile);
    queries_ = scratch.take<Unit>(key_stride_ * kTile);
    grad_outputs_ = scratch.take<Unit>(value_stride_ * kTile);
    // Where a unit is one element, the same tile serves reductions along its rows and over them.
    query_units_ = Isa::step == 1 ? queries_ : scratch.take<Unit>(key_stride_ * kTile);
    grad_output_units_ = Isa::step == 1 ? grad_outputs_ : scratch.take<Unit>(value_stride_ * kTile);
    probabilities_ = scratch.take<Unit>(kTile * kRowUnits);
    grad_scores_ = scratch.take<Unit>(kTile * kRowUnits);
    grad_score_rows_ = Isa::step == 1 ? grad_scores_ : scratch.take<Unit>(kTile * kRowUnits);
    grad_keys_ = scratch.take<float>(key_stride_ * kTile);
    grad_values_ = scratch.take<float>(value_stride_ * kTile);
    used_ = scratch.used();
  }

  FLASHMASK_INLINE void begin(const BackwardTask& task) {
    column0_ = task.column_tile * kTile;
    const std::int64_t left = task.sizes.key_length - column0_;
    columns_ = static_cast<int>(left < kTile ? left : kTile);
    load_rows<Isa, In>(grad_outputs_, value_stride_, task.v, column0_, 0, kTile, columns_, task.sizes.value_dim);
    transpose_to_panels<Isa>(grad_outputs_, value_stride_, values_transposed_, value_units_);
    load_rows<Isa, In>(queries_, key_stride_, task.k, column0_, 0, kTile, columns_, task.sizes.head_dim);
    transpose_to_panels<Isa>(queries_, key_stride_, keys_transposed_, key_units_);
    load_row_units<Isa, In>(keys_, key_stride_, task.k, column0_, 0, kTile, columns_, task.sizes.head_dim);
    fill_zero<Isa>(grad_keys_, key_stride_ * kTile);
    fill_zero<Isa>(grad_values_, value_stride_ * kTile);
  }

  FLASHMASK_INLINE void visit(const BackwardTask& task, const BackwardHead& head, std::int64_t row_tile,
                              TileKind kind) {
    const std::int64_t row0 = row_tile * kTile;
    const std::int64_t left = task.sizes.query_length - row0;
    const TileBounds tile{row0, column0_, static_cast<int>(left < kTile ? left : kTile), columns_};
    extent_.set_whole();
    if (kind == TileKind::full && columns_ == kTile) {
      step<false>(task, head, tile);
    } else {
      if (kind == TileKind::full) {
        for (int r = 0; r < kTile; ++r) bits_.word[r] = low_bits(columns_);
      } else {
        Predicate<Isa>::row_words(head.mask, tile, bits_);
      }
      if (task.trim) extent_.set_visible(bits_);
      step<true>(task, head, tile);
    }
    add_grad_query(task, head, row_tile, tile);
  }

  template <bool Masked>
  FLASHMASK_INLINE void step(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile) {
    load_queries(task, head, tile);
    grad_score<Masked>(head, tile);
    // dV += Pᵀ dO, dK += dSᵀ Q
    accumulate_keys(grad_values_, value_stride_, value_columns_, probabilities_, grad_output_units_);
    accumulate_keys(grad_keys_, key_stride_, key_columns_, grad_scores_, query_units_);
  }

  FLASHMASK_INLINE void load_queries(const BackwardTask& task, const BackwardHead& head, const TileBounds& tile) {
    const int begin = extent_.first_line, end = extent_.last_line;
    load_rows<Isa, In>(queries_, key_stride_, head.q, tile.row0, begin, end, tile.rows, task.sizes.head_dim);
    load_rows<Isa, In>(grad_outputs_, value_stride_, head.grad_o, tile.row0, begin, end, tile.rows,
                       task.sizes.value_dim);
    if constexpr (Isa::step != 1) {
      load_row_units<Isa, In>(query_units_, key_stride_, head.q, tile.row0, begin, end, tile.rows, task.sizes.head_dim);
      load_row_units<Isa, In>(grad_output_units_, value_stride_, head.grad_o, tile.row0, begin, end, tile.rows,
                              task.sizes.value_dim);
    }
  }

  /// P = 2^(scale · log2(e) · q kᵀ − lse2) and dS = P ∘ (dO vᵀ − Δ), one register tile of each after the other.
  template <bool Masked>
  FLASHMASK_INLINE void grad_score(const BackwardHead& head, const TileBounds& tile) {
    for (int panel = 0; panel < kPanels; ++panel) {
      const Panel<Unit> keys{keys_transposed_ + panel * round_up_lanes<Isa>(key_units_) * kPanel<Isa>, kPanel<Isa>};
      const Panel<Unit> values{values_transposed_ + panel * round_up_lanes<Isa>(value_units_) * kPanel<Isa>,
                               kPanel<Isa>};
      for (int block = 0; block < Blocks::count; ++block) {
        Blocks::with_rows(block, [&](auto rows) FLASHMASK_INLINE_LAMBDA {
          if (extent_.active(block, panel)) {
            register_tile_of_scores<Masked, rows.value>(head, tile, panel, Blocks::begin(block), keys, values);
          } else {
            clear_register_tile<rows.value>(panel, Blocks::begin(block));
          }
        });
      }
    }
  }

  template <bool Masked, int Rows>
  FLASHMASK_INLINE void register_tile_of_scores(const BackwardHead& head, const TileBounds& tile, int panel, int q0,
                                                Panel<Unit> keys, Panel<Unit> values) {
    const Vec scale = Isa::broadcast(scale_ * kLog2E);
    Accumulators<Isa, Rows, Isa::vectors> p =
        register_tile<Isa, Rows, Isa::vectors>({queries_ + q0 * key_stride_, key_stride_, 1}, keys, key_units_);
    alignas(64) float kept[Rows][kPanel<Isa>];
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      const Vec lse2 = Isa::broadcast(head.statistics.lse2[tile.row0 + q0 + r]);
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        Vec x = Isa::exp2(Isa::sub(Isa::mul(p.v[r][v], scale), lse2));
        if constexpr (Masked)
          x = Isa::select(bits_.word[q0 + r] >> (panel * kPanel<Isa> + v * Isa::lanes), x, Isa::broadcast(0.0f));
        p.v[r][v] = x;
        Isa::store(kept[r] + v * Isa::lanes, x);
      });
    });
    store_register_tile(probabilities_, panel, q0, p);

    Accumulators<Isa, Rows, Isa::vectors> ds = register_tile<Isa, Rows, Isa::vectors>(
        {grad_outputs_ + q0 * value_stride_, value_stride_, 1}, values, value_units_);
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      const Vec delta = Isa::broadcast(head.statistics.delta[tile.row0 + q0 + r]);
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        ds.v[r][v] = Isa::mul(Isa::load(kept[r] + v * Isa::lanes), Isa::sub(ds.v[r][v], delta));
      });
    });
    store_register_tile(grad_scores_, panel, q0, ds);
    store_register_tile_rows(panel, q0, ds);
  }

  template <int Rows>
  FLASHMASK_INLINE void store_register_tile(Unit* tile, int panel, int q0,
                                            const Accumulators<Isa, Rows, Isa::vectors>& x) {
    unrolled<Rows / 2>([&](auto pair) FLASHMASK_INLINE_LAMBDA {
      constexpr int r = 2 * pair.value;
      unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        Isa::store_row_pair(tile + (q0 + r) / Isa::step * kTile + panel * kPanel<Isa> + v * Isa::lanes, kTile,
                            x.v[r][v], x.v[r + 1][v]);
      });
    });
  }

  /// dS once more, for the reduction along its rows, where that needs another layout.
  template <int Rows>
  FLASHMASK_INLINE void store_register_tile_rows(int panel, int q0, const Accumulators<Isa, Rows, Isa::vectors>& x) {
    if constexpr (Isa::step != 1) {
      unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          const int lane = panel * kPanel<Isa> + v * Isa::lanes;
          Isa::store_row(grad_score_rows_ + (q0 + r) * kRowUnits + lane / Isa::step, x.v[r][v]);
        });
      });
    }
  }

  /// Products that follow may sum over a register tile that was left out.
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
      for (int block = 0; block < Blocks::count; ++block) {
        const int begin = extent_.lines_begin[block] / Isa::step;
        const int end = (extent_.lines_end[block] + Isa::step - 1) / Isa::step;
        if (begin >= end) continue;
        const int key = Blocks::begin(block);
        accumulate_block<Isa>(sum + key * stride, stride, block, {weights + begin * kTile + key, 1, kTile},
                              {rows + begin * stride + column, stride}, end - begin, column, columns);
      }
    }
  }

  /// dQ[query] += dS k, in this column tile's turn; the last one to add scales and stores the gradient.
  FLASHMASK_INLINE void add_grad_query(const BackwardTask& task, const BackwardHead& head, std::int64_t row_tile,
                                       const TileBounds& tile) {
    float* sum = head.grad_q_sum + row_tile * kTile * key_columns_;
    const Turn turn = await_turn(*head.turns, row_tile, task.column_tile);
    if (turn.first) fill_zero<Isa>(sum, kTile * key_columns_);
    for (std::int64_t column = 0; column < key_columns_; column += kPanel<Isa>) {
      for (int block = 0; block < Blocks::count; ++block) {
        const int begin = extent_.lanes_begin(block) / Isa::step;
        const int end = (extent_.lanes_end(block) + Isa::step - 1) / Isa::step;
        if (begin >= end) continue;
        const int q = Blocks::begin(block);
        accumulate_block<Isa>(sum + q * key_columns_, key_columns_, block,
                              {grad_score_rows_ + q * kRowUnits + begin, kRowUnits, 1},
                              {keys_ + begin * key_stride_ + column, key_stride_}, end - begin, column, key_columns_);
      }
    }
    if (turn.last) {
      for (int q = 0; q < tile.rows; ++q)
        store_row_scaled<Isa>(row_of<In>(head.grad_q, tile.row0 + q), sum + q * key_columns_, scale_,
                              task.sizes.head_dim);
    }
    pass_turn(*head.turns, row_tile);
  }

  FLASHMASK_INLINE void finish(const BackwardTask& task) {
    for (int c = 0; c < columns_; ++c) {
      store_row_scaled<Isa>(row_of<In>(task.grad_k, column0_ + c), grad_keys_ + c * key_stride_, scale_,
                            task.sizes.head_dim);
      store_row_scaled<Isa>(row_of<In>(task.grad_v, column0_ + c), grad_values_ + c * value_stride_, 1.0f,
                            task.sizes.value_dim);
    }
  }

  static FLASHMASK_INLINE float dot_rows(const In* a, const In* b, int width) {
    float lane[Isa::lanes] = {};
    Vec sum = Isa::broadcast(0.0f);
    int c = 0;
    for (; c + Isa::lanes <= width; c += Isa::lanes) sum = Isa::fma(Isa::widen(a + c), Isa::widen(b + c), sum);
    if (c < width) sum = Isa::fma(Isa::widen_tail(a + c, width - c), Isa::widen_tail(b + c, width - c), sum);
    Isa::store(lane, sum);
    float total = 0;
    for (const float x : lane) total += x;
    return total;
  }

  static FLASHMASK_INLINE void store_zero_row(In* row, int width) {
    int c = 0;
    for (; c + Isa::lanes <= width; c += Isa::lanes) Isa::narrow(row + c, Isa::broadcast(0.0f));
    if (c < width) Isa::narrow_tail(row + c, Isa::broadcast(0.0f), width - c);
  }

  const std::int64_t key_units_, value_units_, key_stride_, value_stride_, key_columns_, value_columns_;
  const float scale_;
  std::size_t used_;
  Unit *keys_transposed_, *values_transposed_, *keys_, *queries_, *grad_outputs_, *query_units_, *grad_output_units_;
  Unit *probabilities_, *grad_scores_, *grad_score_rows_;
  float *grad_keys_, *grad_values_;
  std::int64_t column0_ = 0;
  int columns_ = 0;
  TileBits bits_;
  TileExtent<Isa> extent_;
};

}  // namespace flashmask::cpu
