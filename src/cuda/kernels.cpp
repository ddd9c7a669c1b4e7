// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include <iterator>

#include "cuda/sm90/kernels.h"
#include "plan/kernel.h"

namespace flashmask {
namespace cuda {
namespace {

/// What src/CMakeLists.txt compiles: the kernels() of each architecture that was asked for, as it was asked.
constexpr KernelRows (*kArchitectures[])() = {FLASHMASK_CUDA_KERNELS};

}  // namespace
}  // namespace cuda

KernelRows cuda_kernels() {
  KernelRows rows;
  for (const auto kernels : cuda::kArchitectures) {
    KernelRows some = kernels();
    rows.insert(rows.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return rows;
}

}  // namespace flashmask
