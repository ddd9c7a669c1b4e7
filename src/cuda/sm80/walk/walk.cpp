// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/walk/walk.h"

#include <memory>
#include <string>

#include "cuda/common/device_tables.h"
#include "cuda/common/kernel_entry.h"
#include "cuda/common/linear_entry.h"
#include "cuda/common/linear_slices.h"
#include "cuda/runtime/device.h"
#include "cuda/sm80/architecture.h"

namespace flashmask::cuda::sm80 {
namespace {

/// A plan's tables, in memory of the host and of its device.
class PreparedWalk {
 public:
  explicit PreparedWalk(const LinearPlanContent& content)
      : memory_(content.problem.device), tables_{WalkPlan(content), {}, nullptr} {
    const WalkPlan& plan = tables_.plan;
    const std::size_t stretches = memory_.add(plan.stretches), order = memory_.add(plan.order),
                      steps = memory_.add(plan.stretch_of_step), trees = memory_.add(plan.trees),
                      padding = memory_.add(plan.padding);
    memory_.upload();
    tables_.view = {memory_.at<WalkStretch>(stretches),
                    memory_.at<int>(order),
                    memory_.at<int>(steps),
                    memory_.at<WalkTree>(trees),
                    plan.steps(),
                    static_cast<int>(content.problem.heads),
                    false};
    tables_.padding = memory_.at<std::int64_t>(padding);
  }

  const WalkTables& tables() const { return tables_; }

 private:
  DeviceTables memory_;
  WalkTables tables_;
};

template <class T>
class WalkKernel final : public LinearEntry {
 public:
  WalkKernel()
      : LinearEntry({std::string(kLarge.name) + ".linear." + to_string(kDType<T>) + ".d" +
                         std::to_string(kMostSlicedKeys) + "v" + std::to_string(kMostSlicedValues) + ".s" +
                         std::to_string(kWalkTokens),
                     kLarge.name, kDType<T>, DeviceType::cuda, kMostSlicedKeys, kMostSlicedValues}) {}

  std::string refusal() const override { return device_refusal(needs(0)); }
  std::string refusal(const LinearProblem& problem, Direction) const override {
    const std::string reason = dims_refusal(problem, kMostSlicedKeys, kMostSlicedValues);
    return reason.empty() ? device_refusal(problem.device, needs(linear_shared_bytes<T>(problem))) : reason;
  }

  std::shared_ptr<const void> prepare(const LinearPlanContent& plan) const override {
    return std::make_shared<const PreparedWalk>(plan);
  }

 protected:
  std::size_t launch(const LinearPlanContent& plan, const LinearForwardTensors& tensors, std::byte* workspace,
                     void* stream) const override {
    return launch_linear<T>(plan.problem, tables(plan), tensors, workspace, stream);
  }
  std::size_t launch(const LinearPlanContent& plan, const LinearBackwardTensors& tensors, std::byte* workspace,
                     void* stream) const override {
    return launch_linear<T>(plan.problem, tables(plan), tensors, workspace, stream);
  }

 private:
  static DeviceNeeds needs(std::size_t shared_bytes) { return {kLarge.capability, false, shared_bytes, 1}; }
  const WalkTables& tables(const LinearPlanContent& plan) const {
    return static_cast<const PreparedWalk*>(plan.prepared(*this))->tables();
  }
};

}  // namespace

KernelEntries linear_kernels() {
  KernelEntries kernels;
  kernels.push_back(std::make_unique<const WalkKernel<__nv_bfloat16>>());
  kernels.push_back(std::make_unique<const WalkKernel<__half>>());
  return kernels;
}

}  // namespace flashmask::cuda::sm80
