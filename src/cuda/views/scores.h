// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/dtype.h"

/// What kernels are told about a call's scores: plain structs, which host code fills (common/views.h).
namespace flashmask::cuda {

/// log₂ e and ln 2: kernels compute in powers of two, and lse is a natural logarithm.
inline constexpr float kLog2E = 1.44269504088896F, kLn2 = 0.693147180559945F;

/// ALiBi as kernels are given it: scores lose slope · |position of row − position of column|.
struct AlibiArguments {
  const float* slopes;                           // of the query heads; null: no ALiBi
  const float *query_positions, *key_positions;  // null: row i has position i + row_shift, column j has j
  std::int64_t slopes_batch;                     // elements between batch entries; 0: they share one
  std::int64_t query_positions_batch, key_positions_batch;
  int query_length, key_length, row_shift;
  float to_products;  // what a slope is multiplied by where scores are not yet multiplied by their scale
};

/// A bias tensor as kernels are given it: what is added to each score, or to the scores of each distance.
struct BiasArguments {
  const void* values;             // null: no bias tensor
  std::int64_t batch, head, row;  // elements between batch entries, query heads and rows; 0: they share their values
  DType dtype;
  bool in_pairs;   // columns come in pairs: two 16-bit values, from an even column on, are one aligned word
  bool distances;  // a row has `entries` values by distance, instead of a value for each column
  bool in_eights;  // columns come in eights: eight 16-bit values, from every eighth column on, are 16 aligned bytes,
                   // and all strides fit 32 bits
  int entries;
  int shift;  // the entry for row i and column j is i − j + shift
  int query_length, key_length;
  float to_products;   // turns a value into what is added to a product, for kernels that scale the sum
  float product_log2;  // what turns products, bounded ones where scores are capped, into powers of two

  /// Returns the entry of a score in its row.
  __device__ __forceinline__ int entry(int row_number, int column) const {
    return distances ? row_number - column + shift : column;
  }
};

/// A call's dropout, as kernels are given it. Its decisions are those of flashmask/dropout.h.
struct DropoutArguments {
  std::uint64_t seed, offset;      // DropoutState
  const std::uint64_t* on_device;  // null: these two apply; else seed and offset lie here
  std::uint32_t addend;            // 65536 − threshold in both halves: added to 16 bits that are kept, it carries
  std::uint32_t heads;             // query heads per batch entry
  float scale;                     // factor for what is kept; 1 where nothing is dropped
  // DropoutTables, on the device; null where heads, rows and columns are those of the call.
  const std::int32_t *drawn_heads, *row_eights, *column_eights;

  /// For kernels that serve calls with and without dropout.
  __host__ __device__ bool drops() const { return scale != 1; }
};

/// Sinks, logits that take probability and have no value, as the caller gives them. Strides are in elements, 0 where
/// rows or batch entries share one.
struct SinkView {
  const void* data;               // null: none
  std::int64_t batch, head, row;  // row: 1 where each row has its own, else 0
  bool wide;                      // float32 rather than the kernel's element

  template <class T>
  __device__ __forceinline__ float at(int of_batch, int of_head, int of_row) const {
    const std::int64_t place = of_batch * batch + of_head * head + of_row * row;
    return wide ? static_cast<const float*>(data)[place] : static_cast<float>(static_cast<const T*>(data)[place]);
  }
};

/// A softcap for kernels that have an instance for it: y = tanh(product · scale / cap). Up to kNearCap caps from 0, y
/// is an odd polynomial of the product, right to 1.1e-5 of y: where all scores of a warp lie there, none takes a
/// special function.
struct SoftcapArguments {
  float to_exponent;  // 2 log₂ e · scale / cap
  float near;         // the farthest product that the polynomial is for; −1: none
  float odd[4];       // what the product's powers 1, 3, 5 and 7 are multiplied by
};

/// What kernels are told about a call's scores.
struct ScoreArguments {
  float scale;       // softmax scale
  float scale_log2;  // what turns changed scores into powers of two: softmax scale · log₂ e, cap · log₂ e where scores
                     // are capped, 1 where a bias tensor is added or the kernel is compiled with a change, which leave
                     // powers of two
  float to_exponent;  // 2 log₂ e · softmax scale / cap (softcap.cuh); 0: scores are not capped
  AlibiArguments alibi;
  BiasArguments bias;
  DropoutArguments dropout;  // for kernels with dropout
  SinkView sinks;            // the forward's alone
};

}  // namespace flashmask::cuda
