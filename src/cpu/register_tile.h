// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "cpu/scalar_vector.h"

namespace flashmask::cpu {

/// An operand of a product that is read one unit at a time: element (row, k) is at data[row · row_stride + k · step].
template <class Unit>
struct Broadcast {
  const Unit* data;
  std::int64_t row_stride;
  std::int64_t step;
};

/// An operand that is read a vector at a time: unit k of the columns is at data[k · stride].
template <class Unit>
struct Panel {
  const Unit* data;
  std::int64_t stride;
};

template <class Isa, int Rows, int Vectors>
struct Accumulators {
  typename Isa::Vec v[Rows][Vectors];
};

/// The one inner loop of all products: acc[row][column] += Σ_k a(row, k) · b(k, column). Each element is one chain in
/// ascending k, so that leaving out zero terms at either end changes no bit.
template <class Isa, int Rows, int Vectors>
FLASHMASK_INLINE void add_products(Accumulators<Isa, Rows, Vectors>& acc, Broadcast<typename Isa::Unit> a,
                                   Panel<typename Isa::Unit> b, std::int64_t units) {
  using Vec = typename Isa::Vec;
  for (std::int64_t k = 0; k < units; ++k) {
    Vec columns[Vectors];
    unrolled<Vectors>(
        [&](auto v) FLASHMASK_INLINE_LAMBDA { columns[v] = Isa::load_units(b.data + k * b.stride + v * Isa::lanes); });
    unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      const auto x = Isa::broadcast_unit(a.data + r * a.row_stride + k * a.step);
      unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { acc.v[r][v] = Isa::dot(acc.v[r][v], x, columns[v]); });
    });
  }
}

template <class Isa, int Rows, int Vectors>
FLASHMASK_INLINE Accumulators<Isa, Rows, Vectors> zero_accumulators() {
  Accumulators<Isa, Rows, Vectors> acc;
  unrolled<Rows>([&](auto r) FLASHMASK_INLINE_LAMBDA {
    unrolled<Vectors>([&](auto v) FLASHMASK_INLINE_LAMBDA { acc.v[r][v] = Isa::broadcast(0.0f); });
  });
  return acc;
}

/// Returns Σ_k a(row, k) · b(k, column).
template <class Isa, int Rows, int Vectors>
FLASHMASK_INLINE Accumulators<Isa, Rows, Vectors> register_tile(Broadcast<typename Isa::Unit> a,
                                                                Panel<typename Isa::Unit> b, std::int64_t units) {
  Accumulators<Isa, Rows, Vectors> acc = zero_accumulators<Isa, Rows, Vectors>();
  add_products(acc, a, b, units);
  return acc;
}

/// The lines of a tile in blocks of Isa::row_block; the last block may be shorter.
template <class Isa, int Lines>
struct RowBlocks {
  static constexpr int size = Isa::row_block;
  static constexpr int count = (Lines + size - 1) / size;
  static constexpr int last_size = Lines - (count - 1) * size;

  static constexpr int begin(int block) { return block * size; }
  static constexpr int end(int block) { return block + 1 == count ? Lines : (block + 1) * size; }

  /// Calls body(Count<rows of the block>).
  template <class Body>
  static FLASHMASK_INLINE void with_rows(int block, Body&& body) {
    if (block + 1 < count) {
      body(Count<size>{});
    } else {
      body(Count<last_size>{});
    }
  }
};

/// Columns of a panel, which has Isa::vectors vectors; the last panel of a head dim may have fewer.
template <class Isa>
inline constexpr int kPanel = Isa::lanes* Isa::vectors;

/// Calls body(Count<vectors of the panel that begins at `column`>), of columns that end at `columns`.
template <class Isa, int Vectors = Isa::vectors, class Body>
FLASHMASK_INLINE void with_vectors(std::int64_t column, std::int64_t columns, Body&& body) {
  if constexpr (Vectors == 1) {
    body(Count<1>{});
  } else if (column + Vectors * Isa::lanes <= columns) {
    body(Count<Vectors>{});
  } else {
    with_vectors<Isa, Vectors - 1>(column, columns, body);
  }
}

/// Whether a product starts a sum in memory or is added to it.
enum class Sum : bool { start, go_on };

/// Adds products to sum[row][column] for the rows of one block and the panel that begins at `column`: add(accumulators)
/// adds them to a register tile. `columns`, a multiple of the lanes, is where the last panel ends.
template <class Isa, int Lines, class Add>
FLASHMASK_INLINE void accumulate_products(float* sum, std::int64_t sum_stride, int block, std::int64_t column,
                                          std::int64_t columns, Sum mode, const Add& add_to) {
  const auto add = [&](auto rows, auto vectors) FLASHMASK_INLINE_LAMBDA {
    auto acc = zero_accumulators<Isa, rows.value, vectors.value>();
    add_to(acc);
    unrolled<rows.value>([&](auto r) FLASHMASK_INLINE_LAMBDA {
      unrolled<vectors.value>([&](auto v) FLASHMASK_INLINE_LAMBDA {
        float* p = sum + r * sum_stride + column + v * Isa::lanes;
        const auto before = mode == Sum::start ? Isa::broadcast(0.0f) : Isa::load(p);
        Isa::store(p, Isa::add(before, acc.v[r][v]));
      });
    });
  };
  RowBlocks<Isa, Lines>::with_rows(block, [&](auto rows) FLASHMASK_INLINE_LAMBDA {
    with_vectors<Isa>(column, columns, [&](auto vectors) FLASHMASK_INLINE_LAMBDA { add(rows, vectors); });
  });
}

/// Adds one product, a · b, in this way.
template <class Isa, int Lines>
FLASHMASK_INLINE void accumulate_block(float* sum, std::int64_t sum_stride, int block, Broadcast<typename Isa::Unit> a,
                                       Panel<typename Isa::Unit> b, std::int64_t units, std::int64_t column,
                                       std::int64_t columns, Sum mode = Sum::go_on) {
  accumulate_products<Isa, Lines>(sum, sum_stride, block, column, columns, mode,
                                  [&](auto& acc) FLASHMASK_INLINE_LAMBDA { add_products(acc, a, b, units); });
}

}  // namespace flashmask::cpu
