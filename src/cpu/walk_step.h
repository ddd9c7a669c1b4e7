// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/linear_tasks.h"
#include "cpu/register_tile.h"
#include "cpu/tile_memory.h"

/// What the walks of linear attention share: the weights of a step, and its products. A step has up to 64 tokens behind
/// a state; every product is made of register tiles of one shape, and rows past the tokens are computed and dropped.
namespace flashmask::cpu {

inline constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

template <class Isa>
constexpr std::int64_t round_up_blocks(std::int64_t rows) {
  return (rows + Isa::row_block - 1) / Isa::row_block * Isa::row_block;
}
template <class Isa>
constexpr std::int64_t round_up_panels(std::int64_t columns) {
  return (columns + kPanel<Isa> - 1) / kPanel<Isa> * kPanel<Isa>;
}

/// Rows of a local tile of tokens.
template <class Isa>
inline constexpr int kStepLines = static_cast<int>(round_up_blocks<Isa>(kStepTokens));

/// Row stride of a tile of scores, [key][query]: rows that a last block has beyond 64 are read, and dropped.
inline constexpr std::int64_t kScoreStride = kStepTokens + 16;

/// A matrix that is kept between steps: rows in whole register tiles.
template <class Isa>
struct StateShape {
  std::int64_t rows, columns, stride;

  FLASHMASK_INLINE StateShape(std::int64_t of_rows, std::int64_t of_columns)
      : rows(of_rows), columns(round_up_panels<Isa>(of_columns)), stride(local_stride<Isa>(of_columns)) {}
  /// Whole blocks, and whole vectors for a transpose.
  FLASHMASK_INLINE std::int64_t size() const {
    const std::int64_t blocks = round_up_blocks<Isa>(rows), lanes = round_up_lanes<Isa>(rows);
    return (blocks > lanes ? blocks : lanes) * stride;
  }
};

/// The weights of a step. With b the sums of log_forget from the step's begin on, l of log_input, and M the scale of
/// the state before it, all in powers of two, row i has the scale m_i = max(0, b_i + M, max_{j ≤ i} b_i − b_j + l_j),
/// and the weight of key j in row i is 2^(b_i − b_j + l_j − m_i), at most 1. Sums are in double; so that exponents keep
/// their digits where a gate is very small, b_i − m_i and b_j − l_j are pairs of float32.
template <class Isa>
class StepGates {
 public:
  using Vec = typename Isa::Vec;

  /// Reads the gates of `tokens` tokens from `token0` on.
  void set(GateLine log_forget, GateLine log_input, std::int64_t token0, int tokens, double scale) {
    double sum = 0, top = -std::numeric_limits<double>::infinity();
    for (int t = 0; t < tokens; ++t) {
      sum += in_powers_of_two(log_forget, token0 + t);
      const double column = sum - in_powers_of_two(log_input, token0 + t);
      top = -column > top ? -column : top;
      const double most = sum + (scale > top ? scale : top);
      const double own = most > 0 ? most : 0;
      split(sum - own, row_high_[t], row_low_[t]);
      split(column, column_high_[t], column_low_[t]);
      from_state_[t] = static_cast<float>(sum + scale - own);
      row_scale_[t] = static_cast<float>(own);
      scale_behind_ = own;
    }
    last_ = tokens - 1;
    const Vec last_row = Isa::broadcast(row_high_[last_]), last_low = Isa::broadcast(row_low_[last_]);
    for (int t = 0; t < tokens; t += Isa::lanes) {
      Isa::store(from_state_ + t, Isa::exp2(Isa::load(from_state_ + t)));
      const Vec high = Isa::sub(last_row, Isa::load(column_high_ + t));
      const Vec low = Isa::sub(last_low, Isa::load(column_low_ + t));
      Isa::store(into_state_ + t, Isa::exp2(Isa::add(high, low)));
    }
  }

  /// Returns the weights of key `line` in the rows from `lane` on.
  FLASHMASK_INLINE Vec weights(int line, int lane) const {
    const Vec high = Isa::sub(Isa::load(row_high_ + lane), Isa::broadcast(column_high_[line]));
    const Vec low = Isa::sub(Isa::load(row_low_ + lane), Isa::broadcast(column_low_[line]));
    return Isa::exp2(Isa::add(high, low));
  }
  /// [row]: the weight of the state before the step.
  FLASHMASK_INLINE const float* from_state() const { return from_state_; }
  /// [key]: its weight in the state behind the step.
  FLASHMASK_INLINE const float* into_state() const { return into_state_; }
  /// The weight of the state before the step in that behind it.
  FLASHMASK_INLINE float gain() const { return from_state_[last_]; }
  /// [row]: m, in powers of two.
  FLASHMASK_INLINE float row_scale(int row) const { return row_scale_[row]; }
  /// The scale of the state behind the step, in powers of two.
  FLASHMASK_INLINE double scale_behind() const { return scale_behind_; }

 private:
  /// Below it e^x is 0 in every sum, and pairs of float32 still tell neighbouring gates apart.
  static constexpr double kLowest = -1048576;

  static FLASHMASK_INLINE double in_powers_of_two(GateLine line, std::int64_t token) {
    if (line.data == nullptr) return 0;
    const double x = line.data[token * line.stride];
    return (x < kLowest ? kLowest : x) * kLog2E;
  }
  static FLASHMASK_INLINE void split(double x, float& high, float& low) {
    high = static_cast<float>(x);
    low = static_cast<float>(x - high);
  }

  float row_high_[kStepTokens] = {}, row_low_[kStepTokens] = {}, row_scale_[kStepTokens] = {};
  float column_high_[kStepLines<Isa>] = {}, column_low_[kStepLines<Isa>] = {};
  float from_state_[kStepLines<Isa> + Isa::lanes] = {}, into_state_[kStepLines<Isa> + Isa::lanes] = {};
  int last_ = 0;
  double scale_behind_ = 0;
};

/// Loads `tokens` rows times factor(row), float32, with zeros up to whole panels.
template <class Isa, class In, class Factor>
void load_scaled(float* dst, std::int64_t stride, const Rows& src, std::int64_t row0, int tokens, int width,
                 const Factor& factor) {
  const auto columns = static_cast<int>(round_up_panels<Isa>(width));
  for (int r = 0; r < tokens; ++r) {
    const In* in = row_of<In>(src, row0 + r);
    float* out = dst + r * stride;
    const auto scale = Isa::broadcast(factor(r));
    int c = 0;
    for (; c + Isa::lanes <= width; c += Isa::lanes) Isa::store(out + c, Isa::mul(scale, Isa::widen(in + c)));
    for (; c < columns; c += Isa::lanes)
      Isa::store(out + c, c < width ? Isa::mul(scale, Isa::widen_tail(in + c, width - c)) : Isa::broadcast(0.0f));
  }
}

template <class Isa>
FLASHMASK_INLINE void store_tile(const Accumulators<Isa, Isa::row_block, Isa::vectors>& acc, float* to,
                                 std::int64_t stride) {
  unrolled<Isa::row_block>([&](auto r) FLASHMASK_INLINE_LAMBDA {
    unrolled<Isa::vectors>([&](auto v)
                               FLASHMASK_INLINE_LAMBDA { Isa::store(to + r * stride + v * Isa::lanes, acc.v[r][v]); });
  });
}

/// Writes Σ_k keys(key, k) · rows(k, row) to [key][row] for the register tiles on and above the diagonal; `rows` are
/// panels of `units` lines, as transpose_to_panels() writes them.
template <class Isa>
void multiply_scores(const float* keys, std::int64_t key_stride, const float* rows, std::int64_t units, int tokens,
                     float* scores) {
  for (int panel = 0; panel < tokens; panel += kPanel<Isa>) {
    const Panel<float> lanes{rows + panel * round_up_lanes<Isa>(units), kPanel<Isa>};
    for (int key = 0; key < tokens && key < panel + kPanel<Isa>; key += Isa::row_block) {
      auto acc =
          register_tile<Isa, Isa::row_block, Isa::vectors>({keys + key * key_stride, key_stride, 1}, lanes, units);
      store_tile<Isa>(acc, scores + key * kScoreStride + panel, kScoreStride);
    }
  }
}

/// The lanes from `lane` on whose rows see key `line`.
FLASHMASK_INLINE std::uint64_t rows_behind(int line, int lane) {
  const int first = line - lane;
  return first <= 0 ? ~0ULL : first >= 64 ? 0 : ~0ULL << first;
}

/// The operands of Σ over tokens of a step.
struct TokenSum {
  Broadcast<float> a;
  Panel<float> b;
  std::int64_t units;
};

/// Σ_{key ≤ row} scores[key][row] · values(key), for the rows of a block.
template <class Isa>
FLASHMASK_INLINE TokenSum sum_over_keys(const float* scores, const float* values, std::int64_t stride, int row,
                                        int tokens) {
  const int end = row + Isa::row_block;
  return {{scores + row, 1, kScoreStride}, {values, stride}, end < tokens ? end : tokens};
}
/// Σ_{row ≥ key} scores[key][row] · values(row), for the keys of a block.
FLASHMASK_INLINE TokenSum sum_over_rows(const float* scores, const float* values, std::int64_t stride, int key,
                                        int tokens) {
  return {{scores + key * kScoreStride + key, kScoreStride, 1}, {values + key * stride, stride}, tokens - key};
}

/// Calls body(key, lane, seen) for the vectors of a tile of scores that a product over keys or rows reads; `seen` are
/// the lanes whose rows see the key.
template <class Body>
FLASHMASK_INLINE void for_each_score(int tokens, int row_block, int lanes, const Body& body) {
  for (int key = 0; key < tokens; ++key) {
    const int first = key < row_block ? 0 : key - row_block + 1;  // the first row of a block that the key is in
    for (int lane = first / lanes * lanes; lane < tokens; lane += lanes) body(key, lane, rows_behind(key, lane));
  }
}

/// A product of rows and a state, times one factor per row.
struct FromState {
  const float* rows;
  std::int64_t row_stride;
  const float* state;  ///< null: no state, nothing is added
  std::int64_t state_stride;
  std::int64_t units;
  const float* factor;
};

/// Computes blocks of factor · (rows · state) + Σ within, where within(first row) returns the operands of a block's sum
/// over tokens of the step, and calls part(row, column, block) for the first term and body(row, column, block) for
/// both. A block is [row][panel].
template <class Isa, class Within, class Part, class Body>
FLASHMASK_INLINE void for_each_output_block(const FromState& from, int tokens, std::int64_t columns,
                                            const Within& within, const Part& part, const Body& body) {
  float block[Isa::row_block * kPanel<Isa>];
  for (std::int64_t column = 0; column < columns; column += kPanel<Isa>) {
    for (int row = 0; row < tokens; row += Isa::row_block) {
      auto acc = zero_accumulators<Isa, Isa::row_block, Isa::vectors>();
      if (from.state != nullptr) {
        add_products(acc, Broadcast<float>{from.rows + row * from.row_stride, from.row_stride, 1},
                     Panel<float>{from.state + column, from.state_stride}, from.units);
        unrolled<Isa::row_block>([&](auto r) FLASHMASK_INLINE_LAMBDA {
          const auto factor = Isa::broadcast(from.factor[row + r]);
          unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { acc.v[r][v] = Isa::mul(factor, acc.v[r][v]); });
        });
        store_tile<Isa>(acc, block, kPanel<Isa>);
        part(row, column, block);
      }
      const TokenSum sum = within(row);
      add_products(acc, sum.a, Panel<float>{sum.b.data + column, sum.b.stride}, sum.units);
      store_tile<Isa>(acc, block, kPanel<Isa>);
      body(row, column, block);
    }
  }
}

/// Writes to = gain · from + Σ_t y(t) z(t)ᵀ; from null: the sum alone. `to` may be `from`.
template <class Isa>
void update_state(const StateShape<Isa>& shape, float* to, const float* from, float gain, const float* y,
                  std::int64_t y_stride, const float* z, std::int64_t z_stride, int tokens) {
  const auto factor = Isa::broadcast(gain);
  for (std::int64_t column = 0; column < shape.columns; column += kPanel<Isa>) {
    for (std::int64_t row = 0; row < shape.rows; row += Isa::row_block) {
      auto acc =
          register_tile<Isa, Isa::row_block, Isa::vectors>({y + row, 1, y_stride}, {z + column, z_stride}, tokens);
      unrolled<Isa::row_block>([&](auto r) FLASHMASK_INLINE_LAMBDA {
        unrolled<Isa::vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA {
          const std::int64_t at = (row + r) * shape.stride + column + v * Isa::lanes;
          Isa::store(to + at, from == nullptr ? acc.v[r][v] : Isa::fma(factor, Isa::load(from + at), acc.v[r][v]));
        });
      });
    }
  }
}

template <class Isa, class Out>
FLASHMASK_INLINE void store_vector(Out* p, typename Isa::Vec x, int count) {
  if (count == Isa::lanes)
    Isa::narrow(p, x);
  else
    Isa::narrow_tail(p, x, count);
}

/// Calls body(row, c, vector, count) for what a block that begins at (row, column) has of `tokens` rows and `width`
/// columns; `count` is how many of the vector's numbers that are.
template <class Isa, class Body>
FLASHMASK_INLINE void for_each_vector(const float* block, int row, std::int64_t column, int tokens, int width,
                                      const Body& body) {
  const int rows = tokens - row < Isa::row_block ? tokens - row : Isa::row_block;
  const int begin = static_cast<int>(column), end = begin + kPanel<Isa> < width ? begin + kPanel<Isa> : width;
  for (int r = 0; r < rows; ++r)
    for (int c = begin; c < end; c += Isa::lanes)
      body(row + r, c, Isa::load(block + r * kPanel<Isa> + c - begin), end - c < Isa::lanes ? end - c : Isa::lanes);
}

/// Adds to sums[row] the products of a block's rows with those of `rows`, whose columns end in zeros.
template <class Isa>
FLASHMASK_INLINE void add_row_products(float* sums, const float* block, const float* rows, std::int64_t stride, int row,
                                       std::int64_t column) {
  for (int r = 0; r < Isa::row_block; ++r) {
    auto sum = Isa::broadcast(0.0f);
    for (int c = 0; c < kPanel<Isa>; c += Isa::lanes)
      sum = Isa::fma(Isa::load(block + r * kPanel<Isa> + c), Isa::load(rows + (row + r) * stride + column + c), sum);
    sums[row + r] += Isa::sum(sum);
  }
}

/// Σ_{key} weights · scores of the rows from `lane` on, of which the state's part is from_state · (q · normalizer);
/// null: no state. `rows` are the step's q in panels, scaled.
template <class Isa>
typename Isa::Vec sum_of_weights(const float* scores, const float* rows, const float* normalizer, std::int64_t units,
                                 const float* from_state, int lane, int tokens) {
  auto sum = Isa::broadcast(0.0f);
  if (normalizer != nullptr) {
    const float* const panel =
        rows + lane / kPanel<Isa> * kPanel<Isa> * round_up_lanes<Isa>(units) + lane % kPanel<Isa>;
    auto even = sum, odd = sum;
    for (std::int64_t d = 0; d + 1 < units; d += 2) {
      even = Isa::fma(Isa::broadcast(normalizer[d]), Isa::load(panel + d * kPanel<Isa>), even);
      odd = Isa::fma(Isa::broadcast(normalizer[d + 1]), Isa::load(panel + (d + 1) * kPanel<Isa>), odd);
    }
    if (units % 2 != 0)
      even = Isa::fma(Isa::broadcast(normalizer[units - 1]), Isa::load(panel + (units - 1) * kPanel<Isa>), even);
    sum = Isa::mul(Isa::load(from_state + lane), Isa::add(even, odd));
  }
  const int end = lane + Isa::lanes < tokens ? lane + Isa::lanes : tokens;
  for (int key = 0; key < end; ++key) sum = Isa::add(sum, Isa::load(scores + key * kScoreStride + lane));
  return sum;
}

/// The larger of two numbers; NaN if x is.
FLASHMASK_INLINE float larger(float x, float y) { return x < y ? y : x; }

/// Returns the scale of a given state in powers of two; 0 where none is given.
FLASHMASK_INLINE double scale_of(const HeadStates& states, std::int64_t place) {
  return states.log_scale == nullptr ? 0 : states.log_scale[place * states.log_scale_stride] * kLog2E;
}

}  // namespace flashmask::cpu
