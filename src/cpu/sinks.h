// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_tasks.h"
#include "plan/kernel.h"

/// Sinks, (query heads) or (batch, query heads, rows), float32 or of 16 bits.
namespace flashmask::cpu {

/// Those of the rows of a row tile, from `row0` on, in float32; 0 past the last.
void read_sinks(const TensorView& sinks, std::int64_t batch, std::int64_t head, std::int64_t row0,
                float (&of_rows)[kForwardRows]);

/// What a backward has found of every row: `first` are those of the first head, and a head has `padded_rows`.
struct RowStatistics {
  const Problem& problem;
  LseAndDelta first;
  std::int64_t padded_rows;
};

/// The gradient of a sink is −Σ e^(sink − lse) · Δ over its rows, the same bits for any number of threads.
/// `sums` [batch, query heads]: memory for it.
void differentiate_sinks(const TensorView& sinks, const TensorView& grad_sinks, const RowStatistics& rows, double* sums,
                         const KernelExecution& execution);

}  // namespace flashmask::cpu
