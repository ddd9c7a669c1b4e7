// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/half.h"
#include "cpu/kernel_tasks.h"
#include "cpu/prefetch.h"
#include "cpu/register_tile.h"

namespace flashmask::cpu {

template <class Isa>
constexpr std::int64_t round_up_lanes(std::int64_t n) {
  return (n + Isa::lanes - 1) / Isa::lanes * Isa::lanes;
}

/// Row stride of a local tile with `width` columns: whole panels, and an odd number of cache lines, so that the rows
/// of a tile do not all fall into the same cache set.
template <class Isa>
constexpr std::int64_t local_stride(std::int64_t width) {
  constexpr std::int64_t line = 16;
  const std::int64_t panels = (width + 2 * line - 1) / (2 * line) * (2 * line);
  return panels + line;
}

/// Whether a tile's rows, `stride` bytes apart, fall into so many cache sets that a first-level cache holds a panel of
/// them: its sets repeat every 4,096 bytes, so that rows 1,024 bytes apart share four of them.
constexpr bool spread_over_sets(std::int64_t stride) { return stride % 1024 != 0; }

template <class Isa>
constexpr std::int64_t units_of(std::int64_t elements) {
  return (elements + Isa::step - 1) / Isa::step;
}

/// Hands out pieces of a worker's scratch memory, each on a cache line.
class Scratch {
 public:
  FLASHMASK_INLINE explicit Scratch(std::byte* memory) : memory_(memory) {}

  template <class T>
  FLASHMASK_INLINE T* take(std::int64_t count) {
    T* piece = reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  FLASHMASK_INLINE std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

template <class T>
FLASHMASK_INLINE const T* row_of(const Rows& rows, std::int64_t row) {
  return static_cast<const T*>(rows.data) + row * rows.stride;
}
template <class T>
FLASHMASK_INLINE T* row_of(const MutableRows& rows, std::int64_t row) {
  return static_cast<T*>(rows.data) + row * rows.stride;
}

/// Loads rows [begin, end) of a tile, one unit per `step` elements, for reductions along the row and, if step is 1,
/// over rows as well. Rows from `present` on and columns from `width` on are zero.
template <class Isa, class In>
void load_rows(typename Isa::Unit* dst, std::int64_t dst_stride, const Rows& src, std::int64_t row0, int begin, int end,
               int present, int width) {
  for (int r = begin; r < end; ++r) {
    typename Isa::Unit* out = dst + r * dst_stride;
    const In* in = row_of<In>(src, row0 + r);
    const int columns = r < present ? width : 0;
    if constexpr (Isa::step == 1) {
      int c = 0;
      for (; c + Isa::lanes <= columns; c += Isa::lanes) Isa::store(out + c, Isa::widen(in + c));
      for (; c < width; c += Isa::lanes) {
        const int count = columns > c ? columns - c : 0;
        Isa::store(out + c, count > 0 ? Isa::widen_tail(in + c, count) : Isa::broadcast(0.0f));
      }
    } else {
      for (int c = 0; c < width; c += 2 * Isa::lanes) Isa::load_row(out + c / 2, in + c, columns > c ? columns - c : 0);
    }
  }
}

/// Loads rows [begin, end) of a tile for reductions over rows: [row / step][column]. `begin` is a multiple of step.
template <class Isa, class In>
void load_row_units(typename Isa::Unit* dst, std::int64_t dst_stride, const Rows& src, std::int64_t row0, int begin,
                    int end, int present, int width) {
  if constexpr (Isa::step == 1) {
    load_rows<Isa, In>(dst, dst_stride, src, row0, begin, end, present, width);
  } else {
    for (int r = begin; r < end; r += 2) {
      const In* first = r < present ? row_of<In>(src, row0 + r) : nullptr;
      const In* second = r + 1 < present ? row_of<In>(src, row0 + r + 1) : nullptr;
      for (int c = 0; c < width; c += 2 * Isa::lanes)
        Isa::load_row_pair(dst + r / 2 * dst_stride + c, first ? first + c : nullptr, second ? second + c : nullptr,
                           width - c);
    }
  }
}

/// Transposes `rows` rows of units into panels [rows / panel][unit][panel]: the columns of a product whose reduction
/// runs along the rows.
template <class Isa>
FLASHMASK_INLINE void transpose_to_panels(const typename Isa::Unit* src, std::int64_t src_stride,
                                          typename Isa::Unit* dst, int rows, std::int64_t units) {
  const std::int64_t padded = round_up_lanes<Isa>(units);
  for (int r = 0; r < rows; r += Isa::lanes) {
    typename Isa::Unit* panel = dst + r / kPanel<Isa> * padded * kPanel<Isa> + r % kPanel<Isa>;
    for (std::int64_t u = 0; u < padded; u += Isa::lanes)
      Isa::transpose(src + r * src_stride + u, src_stride, panel + u * kPanel<Isa>, kPanel<Isa>);
  }
}

/// Loads `rows` rows of a tensor into panels; `spare` holds a copy of them where they are of another type, not whole
/// vectors, or too few.
template <class Isa, class In>
void load_transposed(typename Isa::Unit* dst, typename Isa::Unit* spare, std::int64_t spare_stride, const Rows& src,
                     std::int64_t row0, int rows, int present, int width) {
  if constexpr (std::is_same_v<In, typename Isa::Unit>) {
    if (present >= rows && width % Isa::lanes == 0) {
      transpose_to_panels<Isa>(row_of<In>(src, row0), src.stride, dst, rows, width);
      return;
    }
  }
  load_rows<Isa, In>(spare, spare_stride, src, row0, 0, rows, present, width);
  transpose_to_panels<Isa>(spare, spare_stride, dst, rows, units_of<Isa>(width));
}

template <class Isa, class Out>
void store_zeros(Out* row, int width) {
  int c = 0;
  for (; c + Isa::lanes <= width; c += Isa::lanes) Isa::narrow(row + c, Isa::broadcast(0.0f));
  if (c < width) Isa::narrow_tail(row + c, Isa::broadcast(0.0f), width - c);
}

/// Rows of float32 to be stored, each times its factor.
struct ScaledRows {
  const float* data;  ///< null: zeros
  std::int64_t stride;
  const float* factors;
};

/// Stores `count` rows, rounded to the tensor's dtype.
template <class Isa, class Out>
void store_rows(const MutableRows& rows, std::int64_t row0, int count, const ScaledRows& from, int width) {
  constexpr std::uintptr_t kLine = 64;
  for (int r = 0; r < count; ++r) {
    Out* dst = row_of<Out>(rows, row0 + r);
    if (from.data == nullptr) {
      store_zeros<Isa>(dst, width);
      continue;
    }
    const float* src = from.data + r * from.stride;
    const typename Isa::Vec f = Isa::broadcast(from.factors[r]);
    const std::uintptr_t ends =
        reinterpret_cast<std::uintptr_t>(dst) | static_cast<std::uintptr_t>(width) * sizeof(Out);
    int c = 0;
    if (rows.past_caches && ends % kLine == 0)
      for (; c < width; c += Isa::lanes) Isa::narrow_past_caches(dst + c, Isa::mul(Isa::load(src + c), f));
    for (; c + Isa::lanes <= width; c += Isa::lanes) Isa::narrow(dst + c, Isa::mul(Isa::load(src + c), f));
    if (c < width) Isa::narrow_tail(dst + c, Isa::mul(Isa::load(src + c), f), width - c);
  }
}

template <class Isa>
FLASHMASK_INLINE void fill_zero(float* p, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += Isa::lanes) Isa::store(p + i, Isa::broadcast(0.0f));
}

/// Copies between tensors of one dtype and the tiles of a kernel. A kernel asks for a tile at a time, so that the rest
/// of it is compiled once for all dtypes.
template <class Isa>
struct TileCopies {
  using Unit = typename Isa::Unit;

  std::int64_t element_bytes;
  bool units;  ///< whether elements are units, so that tiles can be read where they lie
  void (*load_rows)(Unit* dst, std::int64_t dst_stride, const Rows& src, std::int64_t row0, int begin, int end,
                    int present, int width);
  void (*load_row_units)(Unit* dst, std::int64_t dst_stride, const Rows& src, std::int64_t row0, int begin, int end,
                         int present, int width);
  void (*load_transposed)(Unit* dst, Unit* spare, std::int64_t spare_stride, const Rows& src, std::int64_t row0,
                          int rows, int present, int width);
  void (*store_rows)(const MutableRows& rows, std::int64_t row0, int count, const ScaledRows& from, int width);

  FLASHMASK_INLINE const std::byte* row(const Rows& rows, std::int64_t row) const {
    return static_cast<const std::byte*>(rows.data) + row * rows.stride * element_bytes;
  }

  /// Starts to prefetch the rows of some tokens.
  FLASHMASK_INLINE void prefetch(Prefetch& to, const Rows& rows, const TokenRun& tokens, int width) const {
    to.begin(row(rows, tokens.first), rows.stride * element_bytes, tokens.count, width * element_bytes);
  }
};

template <class Isa, class In>
inline constexpr TileCopies<Isa> kTileCopies = {sizeof(In),
                                                std::is_same_v<In, typename Isa::Unit>,
                                                load_rows<Isa, In>,
                                                load_row_units<Isa, In>,
                                                load_transposed<Isa, In>,
                                                store_rows<Isa, In>};

/// Calls body(In{}) with the elements of a dtype; an instruction set whose units are pairs has bfloat16 alone.
template <class Isa, class Body>
FLASHMASK_INLINE decltype(auto) with_elements(DType dtype, const Body& body) {
  if constexpr (Isa::step == 1) {
    if (dtype == DType::f32) return body(float{});
    if (dtype == DType::f16) return body(F16{});
  }
  return body(Bf16{});
}

template <class Isa>
FLASHMASK_INLINE const TileCopies<Isa>& tile_copies(DType dtype) {
  return with_elements<Isa>(dtype, [](auto element) FLASHMASK_INLINE_LAMBDA -> const TileCopies<Isa>& {
    return kTileCopies<Isa, decltype(element)>;
  });
}

}  // namespace flashmask::cpu
