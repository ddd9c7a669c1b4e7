// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "flashmask/error.h"

namespace flashmask::cuda {

/// Throws the error that a call of the CUDA runtime returned, unless it succeeded.
inline void check(cudaError_t answer, const std::string& call) {
  if (answer == cudaSuccess) return;
  const Status status = answer == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::internal;
  throw Error(status, call + ": " + cudaGetErrorString(answer));
}

}  // namespace flashmask::cuda
