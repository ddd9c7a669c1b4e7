// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "plan/kernel.h"

/// Sinks are (query heads) or (batch, query heads, rows), in float32 or a 16-bit dtype.
namespace flashmask::cpu {

/// Reads the sinks of a row tile's rows, from `row0` on, as float32; where each row has its own, those past the last
/// row are 0.
void read_sinks(const TensorView& sinks, std::int64_t batch, std::int64_t head, std::int64_t row0,
                float (&of_rows)[kForwardRows]);

/// Statistics of every row as the backward has found them: `first` points to the first head's; each head has
/// `padded_rows` rows.
struct RowStatistics {
  const Problem& problem;
  LseAndDelta first;
  std::int64_t padded_rows;
};

/// Writes the gradient of each sink, −Σ e^(sink − lse) · Δ over its rows; bit-identical for any number of threads.
/// `sums` [batch, query heads] is scratch memory.
void differentiate_sinks(const TensorView& sinks, const TensorView& grad_sinks, const RowStatistics& rows, double* sums,
                         const KernelExecution& execution);

}  // namespace flashmask::cpu
