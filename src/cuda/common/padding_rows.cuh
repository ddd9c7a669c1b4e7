// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/padding_rows.h"
#include "cuda/instructions/arithmetic.cuh"

namespace flashmask::cuda {

__global__ void __launch_bounds__(kPaddingThreads)
    clear_padding_kernel(const __grid_constant__ PaddingArguments arguments) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * kPaddingThreads + thread_index();
  const std::int64_t line = number / arguments.width, which = line / arguments.heads;
  if (which >= arguments.count) return;
  const std::int64_t token = arguments.tokens[which];
  arguments.data[token / arguments.length * arguments.batch + token % arguments.length * arguments.row +
                 line % arguments.heads * arguments.head + number % arguments.width] = 0;
}

}  // namespace flashmask::cuda
