#pragma once

#include "flashmask/device_plan.h"
#include "kit/device_memory.h"

namespace flashmask::check {

/// A plan on the current device, of a mask from anywhere, and the memory that it lives in.
struct PlanInMemory {
  DeviceMemory memory;
  Plan plan;

  template <class Source>
  PlanInMemory(const Source& mask, const Problem& problem, const PlanOptions& options = {})
      : memory(plan_bytes(mask, problem, options)),
        plan(flashmask::plan(mask, problem, {nullptr, memory.data(), memory.bytes()}, options)) {}
};

}  // namespace flashmask::check
