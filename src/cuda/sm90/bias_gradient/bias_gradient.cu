// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/common/bias_gradient.h"
#include "cuda/common/launch.cuh"
#include "cuda/runtime/device.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/bias_gradient/bias_gradient.h"
#include "cuda/sm90/bias_gradient/bias_gradient_kernel.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {
namespace {

bool serves(const Problem& problem) {
  return problem.dtype == DType::bf16 && problem.change.bias() == ScoreBias::tensor &&
         problem.change.is_cap_and_bias() && !has_dropout(problem) &&
         device_refusal(problem.device, {kArchitecture.capability, true}).empty();
}

}  // namespace

bool launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map) {
  using T = __nv_bfloat16;
  using Memory = BiasGradientMemory;
  const Problem& problem = plan.problem();
  if (!serves(problem)) return false;
  const BiasMap bias = make_bias_map("backward: bias", problem, tensors.bias),
                gradient = make_bias_map("backward: grad_bias", problem, {tensors.grad_bias, 0}, kWarpRows);
  if (!bias.exists || !gradient.exists) return false;
  const auto tile_map = [](const char* name, const TensorView& tensor) {
    return make_tensor_map(name, tensor, Memory::kTile);
  };
  const BiasGradientMaps maps{tile_map("backward: q", tensors.q),
                              tile_map("backward: k", tensors.k),
                              tile_map("backward: v", tensors.v),
                              tile_map("backward: grad_o", tensors.grad_o),
                              bias,
                              gradient};
  const BiasGradientArguments arguments = bias_gradient_arguments(
      problem, tensors, workspace.rows, workspace.bias_sums, map_view(map, plan), map.tile,
      mask_view(PlanAccess::device(plan).mask), score_arguments(problem, execution, {}, {}, tensors.bias));
  const TensorView& to = tensors.grad_bias;
  const int tiles = static_cast<int>(to.shape[0] * to.shape[1]) * arguments.places(), items = tiles * arguments.parts;
  if (items == 0) return true;
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  launch<Memory>("backward: the gradient of the bias", sum_bias_gradient_kernel<T>, std::min(items, multiprocessors()),
                 Memory::kThreads, stream, maps, arguments, items);
  if (arguments.parts > 1)
    launch<JoiningMemory>("backward: joining the gradient of the bias", join_bias_gradient_kernel<T>, tiles,
                          Memory::kConsumers, stream, gradient, arguments);
  return true;
}

}  // namespace flashmask::cuda::sm90
