// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "cuda/sm80/walk/walk.h"
#include "cuda/sm90/kernels.h"
#include "cuda/sm90/walk/walk.h"
#include "plan/kernel.h"
#include "plan/linear.h"

namespace flashmask {
namespace cuda {
namespace {

/// The kernels() of each folder of kernels that this build compiles, as src/cuda/CMakeLists.txt lists them.
constexpr KernelEntries (*kArchitectures[])() = {FLASHMASK_CUDA_KERNELS};

/// The linear_kernels() of each folder that has kernels of linear attention.
const std::vector<LinearKernels (*)()> kLinear = {FLASHMASK_CUDA_LINEAR_KERNELS};

}  // namespace
}  // namespace cuda

KernelEntries cuda_kernels() {
  KernelEntries entries;
  for (const auto kernels : cuda::kArchitectures) {
    KernelEntries some = kernels();
    entries.insert(entries.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return entries;
}

LinearKernels linear_cuda_kernels() {
  LinearKernels entries;
  for (const auto kernels : cuda::kLinear) std::ranges::move(kernels(), std::back_inserter(entries));
  return entries;
}

}  // namespace flashmask
