// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/dropout.h"
#include "flashmask/problem.h"
#include "plan/dropout.h"
#include "plan/kernel.h"

namespace flashmask::cuda {

/// A call's dropout, as kernels are given it. Its decisions are those of flashmask/dropout.h.
struct DropoutArguments {
  DropoutState state;
  const std::uint64_t* on_device;  // null: `state` applies; else seed and offset lie here
  std::uint32_t addend;            // 65536 − threshold in both halves: added to 16 bits that are kept, it carries
  std::uint32_t heads;             // query heads per batch entry
  float scale;                     // factor for what is kept; 1 where nothing is dropped
  DropoutTables place;             // on the device; null where heads, rows and columns are those of the call

  /// For kernels that serve calls with and without dropout.
  __host__ __device__ bool drops() const { return scale != 1; }
};

/// Whether a call drops anything; kernels for calls without dropout draw no numbers.
inline bool has_dropout(const Problem& problem) { return dropout_threshold(problem.dropout) != 0; }

/// Collects the dropout arguments of a call. Where it drops nothing, what it would draw from is meaningless.
inline DropoutArguments dropout_arguments(const Problem& problem, const KernelExecution& execution) {
  return {.state = execution.dropout,
          .on_device = execution.dropout_on_device,
          .addend = (65536 - dropout_threshold(problem.dropout)) * 0x10001U,
          .heads = static_cast<std::uint32_t>(problem.query_heads),
          .scale = static_cast<float>(dropout_scale(problem.dropout)),
          .place = execution.dropout_place};
}

}  // namespace flashmask::cuda
