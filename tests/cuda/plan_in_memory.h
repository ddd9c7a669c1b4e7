// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "cuda/runtime/status.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "kit/device_memory.h"
#include "plan/plan_choice.h"

namespace flashmask::check {

/// Returns values of the device.
template <class T>
std::vector<T> download(const T* from, std::size_t count) {
  std::vector<T> values(count);
  if (count != 0) cuda::check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return values;
}

/// The backward kernel of a plan; nullptr: none serves.
inline const BackwardKernel* backward_kernel(const Plan& plan) {
  try {
    return &PlanAccess::backward(plan);
  } catch (const Error&) {
    return nullptr;
  }
}

/// What the kernels of a plan ask for.
inline std::vector<MapRequest> requests_of(const Plan& plan) {
  std::vector<MapRequest> requests = PlanAccess::forward(plan).maps();
  if (const BackwardKernel* backward = backward_kernel(plan))
    std::ranges::copy(backward->maps(), std::back_inserter(requests));
  return merged(requests);
}

/// Every map of intervals in squares, whatever its size.
inline constexpr MapLimits kSquares{.flat_bytes = 0};
/// The same, with words for none of them.
inline constexpr MapLimits kNoRoom{.flat_bytes = 0, .squares_of_strip = 0};

/// A plan on the current device, of a mask from anywhere, and the memory that it lives in.
struct PlanInMemory {
  DeviceMemory memory;
  Plan plan;

  template <class Source>
  PlanInMemory(const Source& mask, const Problem& problem, const PlanOptions& options = {})
      : memory(plan_bytes(mask, problem, options)),
        plan(flashmask::plan(mask, problem, {nullptr, memory.data(), memory.bytes()}, options)) {}

  /// Of a mask of intervals, with maps as the limits say.
  PlanInMemory(const Mask& mask, const Problem& problem, const PlanOptions& options, const MapLimits& limits)
      : PlanInMemory(PlanInMemory(mask, problem, options), {mask.lowered()}, limits) {}

 private:
  PlanInMemory(const PlanInMemory& usual, const HostMask& mask, const MapLimits& limits)
      : memory(device_plan_bytes(&mask, requests_of(usual.plan), limits)), plan(usual.plan) {
    const Problem& problem = usual.plan.problem();
    const DevicePlan made = make_device_plan(&mask, requests_of(usual.plan), problem.device,
                                             {nullptr, memory.data(), memory.bytes()}, limits);
    plan = PlanAccess::on_device(problem, usual.plan.visit(), {&PlanAccess::forward(usual.plan), nullptr},
                                 {backward_kernel(usual.plan), nullptr}, made, nullptr);
  }
};

}  // namespace flashmask::check
