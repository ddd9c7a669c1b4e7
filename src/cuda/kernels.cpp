// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/kernels.h"

#include "cuda/common/bias_gradient.h"
#include "cuda/sm90/bias_gradient/bias_gradient.h"
#include "cuda/sm90/kernels.h"
#include "plan/table_entry.h"

namespace flashmask {
namespace cuda {
namespace {

/// The kernels() of each folder of kernels that this build compiles, as src/cuda/CMakeLists.txt lists them.
constexpr KernelEntries (*kArchitectures[])() = {FLASHMASK_CUDA_KERNELS};

}  // namespace

std::vector<BiasGradientPass> bias_gradient_passes() { return {FLASHMASK_CUDA_BIAS_GRADIENTS}; }

}  // namespace cuda

KernelEntries cuda_kernels() {
  KernelEntries entries;
  for (const auto kernels : cuda::kArchitectures) append(entries, kernels());
  return entries;
}

}  // namespace flashmask
