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

/// Heads times slices below which a walk leaves so much of the GPU idle that kernels which cut trees are faster.
constexpr std::int64_t kFewestLines = 32;
/// What those kernels take.
constexpr std::int64_t kMostCutDim = 128;

class PreparedWalk {
 public:
  explicit PreparedWalk(const LinearPlanContent& content) : memory_(content.problem.device) {
    const WalkVisits visits(content, slices_of(content.problem), device_facts(content.problem.device).multiprocessors);
    const std::size_t rows = memory_.add(visits.visits), begins = memory_.add(visits.begins),
                      padding = memory_.add(visits.padding);
    memory_.upload();
    tables_ = {memory_.at<WalkVisit>(rows),
               memory_.at<int>(begins),
               visits.blocks(),
               visits.slots,
               memory_.at<std::int64_t>(padding),
               static_cast<std::int64_t>(visits.padding.size())};
  }

  const WalkTables& tables() const { return tables_; }

 private:
  DeviceTables memory_;
  WalkTables tables_{};
};

template <class T>
class WalkKernel final : public LinearEntry {
 public:
  WalkKernel()
      : LinearEntry({std::string(kArchitecture.name) + ".linear." + to_string(kDType<T>) + ".d" +
                         std::to_string(kMostWalkKeys) + "v" + std::to_string(kMostWalkValues) + ".s" +
                         std::to_string(kWalkTokens),
                     kArchitecture.name, kDType<T>, DeviceType::cuda, kMostWalkKeys, kMostWalkValues}) {}

  std::string refusal() const override { return device_refusal(kNeeds); }
  std::string refusal(const LinearProblem& problem, Direction direction) const override {
    if (direction == Direction::backward) return "it computes the forward alone";
    const std::string reason = dims_refusal(problem, kMostWalkKeys, kMostWalkValues);
    return reason.empty() ? device_refusal(problem.device, kNeeds) : reason;
  }
  std::string reservation(const LinearProblem& problem, Direction) const override {
    const std::int64_t lines = problem.heads * slices_of(problem);
    if (lines >= kFewestLines || problem.key_dim > kMostCutDim || problem.value_dim > kMostCutDim) return "";
    return "it walks each head by one block, too slow for " + std::to_string(lines) + "; plans take it for " +
           std::to_string(kFewestLines) + " and more, or by its name";
  }

  std::shared_ptr<const void> prepare(const LinearPlanContent& plan) const override {
    return std::make_shared<const PreparedWalk>(plan);
  }

 protected:
  std::size_t launch(const LinearPlanContent& plan, const LinearForwardTensors& tensors, std::byte* workspace,
                     void* stream) const override {
    const auto* const prepared = static_cast<const PreparedWalk*>(plan.forward.prepared.get());
    return launch_linear<T>(plan.problem, prepared->tables(), tensors, workspace, stream);
  }
  std::size_t launch(const LinearPlanContent&, const LinearBackwardTensors&, std::byte*, void*) const override {
    throw Error(Status::internal, "linear_backward: " + info().name + " computes the forward alone");
  }

 private:
  static constexpr DeviceNeeds kNeeds{kArchitecture.capability, true};
};

}  // namespace

LinearKernels linear_kernels() {
  LinearKernels kernels;
  kernels.push_back(std::make_unique<const WalkKernel<__nv_bfloat16>>());
  kernels.push_back(std::make_unique<const WalkKernel<__half>>());
  return kernels;
}

}  // namespace flashmask::cuda::sm90
