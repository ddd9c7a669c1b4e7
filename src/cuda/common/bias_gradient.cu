// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/bias_gradient.h"
#include "cuda/common/bias_gradient_kernel.cuh"
#include "cuda/common/kernel_entry.h"
#include "cuda/common/launch.cuh"
#include "cuda/compile/compiled_kernel.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda {
namespace {

/// Clears a gradient by rows: of a table of distances, of which some entries may have no score.
void clear_rows(const TensorView& gradient, cudaStream_t stream) {
  const auto element = static_cast<std::int64_t>(size_in_bytes(gradient.dtype));
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements * element); };
  for (std::int64_t batch = 0; batch < gradient.shape[0]; ++batch)
    for (std::int64_t head = 0; head < gradient.shape[1]; ++head) {
      auto* const first =
          static_cast<std::byte*>(gradient.data) + (batch * gradient.strides[0] + head * gradient.strides[1]) * element;
      check(cudaMemset2DAsync(first, bytes(gradient.strides[2]), 0, bytes(gradient.shape[3]),
                              static_cast<std::size_t>(gradient.shape[2]), stream),
            "backward: clearing the gradient of the bias");
    }
}

using SumsKernel = void (*)(BiasGradientArguments);

template <class Memory>
void launch_blocks(const Problem& problem, SumsKernel kernel, const BiasGradientArguments& arguments, int blocks,
                   int threads, cudaStream_t stream) {
  divide_memory<Memory>("backward", kernel, 1, problem);
  launch<Memory>("backward: the gradient of the bias", kernel, blocks, threads, stream, arguments);
}

/// Returns the kernel for a problem's change of scores, which is compiled in the first call that asks for it.
template <class Shape>
SumsKernel sums_kernel(const Problem& problem, const BackwardTensors& tensors, cudaStream_t stream) {
  if (!compiles_change(problem)) return bias_gradient_kernel<Shape>;
  return compiled_kernel<Changed<Shape, Change>, BiasGradientArguments>(
      "#include \"cuda/common/bias_gradient_kernel.cuh\"\n", "flashmask::cuda::bias_gradient_kernel", problem,
      compile::forms_of(problem.change, compile::change_tensors(tensors)), stream);
}

template <class T>
void launch_sums(const Problem& problem, const BackwardTensors& tensors, BiasGradientArguments arguments, int blocks,
                 cudaStream_t stream) {
  using Shape = BiasGradientShape<T>;
  using Keeping = BiasKeepingMemory<Shape>;
  arguments.keeps_bias = arguments.keeps_bias && device_facts(problem.device).block_shared_bytes >= sizeof(Keeping);
  const auto launch_own = arguments.keeps_bias ? launch_blocks<Keeping> : launch_blocks<BiasGradientMemory<Shape>>;
  launch_own(problem, sums_kernel<Shape>(problem, tensors, stream), arguments, blocks, Shape::kThreads, stream);
  if (arguments.parts > 1)
    launch<BiasGradientMemory<Shape>>("backward: joining the gradient of the bias", join_parts_kernel<Shape>,
                                      blocks / arguments.parts, Shape::kThreads, stream, arguments);
}

/// A block takes entries of one list.
template <int kThreads>
__global__ void join_diagonals_kernel(const __grid_constant__ BiasGradientArguments arguments) {
  const int entry = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (entry < arguments.gradient.entries) join_diagonals(arguments, static_cast<int>(blockIdx.y), entry);
}

void launch_joining(const BiasGradientArguments& arguments, int lists, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const dim3 blocks(static_cast<unsigned>((arguments.gradient.entries + kThreads - 1) / kThreads),
                    static_cast<unsigned>(lists));
  if (blocks.x == 0) return;
  join_diagonals_kernel<kThreads><<<blocks, kThreads, 0, stream>>>(arguments);
  check(cudaGetLastError(), "backward: joining the gradient of the bias");
}

}  // namespace

void launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map) {
  const TensorView& gradient = tensors.grad_bias;
  if (!gradient.present()) return;
  for (const BiasGradientPass pass : bias_gradient_passes())
    if (pass(plan, tensors, workspace, execution, map)) return;
  const Problem& problem = plan.problem();
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  BiasGradientArguments arguments = bias_gradient_arguments(
      problem, tensors, workspace.rows, workspace.bias_sums, map_view(map, plan), map.tile,
      mask_view(PlanAccess::device(plan).mask), score_arguments(problem, execution, {}, {}, tensors.bias));
  if (compiles_change(problem)) arguments.change = compile::change_operands(problem, compile::change_tensors(tensors));
  const bool diagonals = arguments.sums == BiasSums::diagonals;
  if (problem.change.bias() == ScoreBias::distances && !diagonals) clear_rows(gradient, stream);
  const int lists = static_cast<int>(gradient.shape[0] * gradient.shape[1]),
            blocks = lists * arguments.places() * arguments.parts;
  if (blocks > 0) {
    const auto launch_own = problem.dtype == DType::f16 ? launch_sums<__half> : launch_sums<__nv_bfloat16>;
    launch_own(problem, tensors, arguments, blocks, stream);
  }
  if (diagonals) launch_joining(arguments, lists, stream);
}

}  // namespace flashmask::cuda
