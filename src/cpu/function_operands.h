// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"

/// What functions of scores do outside of the kernels' vectors: values of single tokens, and entries of operands.
namespace flashmask::cpu {

/// An index of a read, or an argument of another operation, for a register tile: line r and lane c have
/// at[r · line_stride + c · lane_step].
struct TileArgument {
  const float* at;
  std::int64_t line_stride;
  std::int64_t lane_step;  ///< 0 or 1
};

/// Computes the values of single tokens that meet others, of keys or of queries: out[slot · capacity + t] for tokens
/// first … first + count − 1, and that of the last one for t up to the capacity.
void compute_sides(const FunctionNodes& function, const HeadOperands& operands, bool of_keys, std::int64_t first,
                   int count, int capacity, float* out);

/// Reads an entry for each of lines × width scores, whose indices are the arguments.
void read_entries(const TensorView& operand, const TileArgument* indices, int lines, int width, float* out);

}  // namespace flashmask::cpu
