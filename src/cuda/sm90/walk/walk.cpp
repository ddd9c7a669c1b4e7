// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/walk/walk.h"

#include <memory>
#include <string>

#include "cuda/common/device_tables.h"
#include "cuda/common/kernel_entry.h"
#include "cuda/common/linear_entry.h"
#include "cuda/runtime/device.h"
#include "cuda/sm90/architecture.h"
#include "cuda/sm90/walk/walk_visits.h"

namespace flashmask::cuda::sm90 {
namespace {

/// Heads below which a walk leaves so much of the GPU idle that kernels which cut trees are faster, unless these have
/// to take several slices one after the other.
constexpr std::int64_t kFewestHeads = 32;

class PreparedWalk {
 public:
  explicit PreparedWalk(const LinearPlanContent& content) : memory_(content.problem.device) {
    const WalkVisits visits(content, device_facts(content.problem.device).multiprocessors);
    const Places forward = add(visits.forward), rows = add(visits.rows), queries = add(visits.queries),
                 reverse = add(visits.reverse);
    const std::size_t steps = memory_.add(visits.steps), padding = memory_.add(visits.padding);
    memory_.upload();
    tables_ = {table(visits.forward, forward),    table(visits.rows, rows),
               table(visits.queries, queries),    table(visits.reverse, reverse),
               memory_.at<WalkVisit>(steps),      static_cast<int>(visits.steps.size()),
               memory_.at<std::int64_t>(padding), static_cast<std::int64_t>(visits.padding.size())};
  }

  const WalkTables& tables() const { return tables_; }

 private:
  struct Places {
    std::size_t visits, begins;
  };

  Places add(const VisitList& list) { return {memory_.add(list.visits), memory_.add(list.begins)}; }
  VisitTable table(const VisitList& list, const Places& places) const {
    return {memory_.at<WalkVisit>(places.visits), memory_.at<int>(places.begins), list.blocks(), list.slots};
  }

  DeviceTables memory_;
  WalkTables tables_{};
};

template <class T>
class WalkKernel final : public LinearEntry {
 public:
  WalkKernel()
      : LinearEntry({std::string(kArchitecture.name) + ".linear." + to_string(kDType<T>) + ".d" +
                         std::to_string(kMostSlicedKeys) + "v" + std::to_string(kMostSlicedValues) + ".s" +
                         std::to_string(kWalkTokens),
                     kArchitecture.name, kDType<T>, DeviceType::cuda, kMostSlicedKeys, kMostSlicedValues}) {}

  std::string refusal() const override { return device_refusal(kNeeds); }
  std::string refusal(const LinearProblem& problem, Direction) const override {
    const std::string reason = dims_refusal(problem, kMostSlicedKeys, kMostSlicedValues);
    return reason.empty() ? device_refusal(problem.device, kNeeds) : reason;
  }
  std::string reservation(const LinearProblem& problem, Direction) const override {
    if (problem.heads >= kFewestHeads || key_slices(problem) * value_slices(problem) > 1) return "";
    return "it walks each head by one block, too slow for " + std::to_string(problem.heads) + "; plans take it for " +
           std::to_string(kFewestHeads) + " and more, or by its name";
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
  const WalkTables& tables(const LinearPlanContent& plan) const {
    return static_cast<const PreparedWalk*>(plan.prepared(*this))->tables();
  }

  static constexpr DeviceNeeds kNeeds{kArchitecture.capability, true};
};

}  // namespace

KernelEntries linear_kernels() {
  KernelEntries kernels;
  kernels.push_back(std::make_unique<const WalkKernel<__nv_bfloat16>>());
  kernels.push_back(std::make_unique<const WalkKernel<__half>>());
  return kernels;
}

}  // namespace flashmask::cuda::sm90
