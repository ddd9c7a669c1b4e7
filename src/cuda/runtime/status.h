// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace flashmask::cuda {

/// Throws the error that a call of the CUDA runtime returned, unless it succeeded. `of`: more of the call's name.
void check(cudaError_t answer, const char* call, const char* of = "");

}  // namespace flashmask::cuda
