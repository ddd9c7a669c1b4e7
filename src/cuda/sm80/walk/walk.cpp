// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/walk/walk.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/row_checks.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "cuda/sm80/architecture.h"

namespace flashmask::cuda::sm80 {
namespace {

constexpr std::int64_t kMostDim = 128;

/// Tables of a plan, in one allocation on its device.
class DeviceTables {
 public:
  explicit DeviceTables(const LinearPlanContent& content)
      : device_(content.problem.device), tables_{WalkPlan(content), {}, nullptr} {
    const WalkPlan& plan = tables_.plan;
    const std::size_t stretches = add(plan.stretches), order = add(plan.order), steps = add(plan.stretch_of_step),
                      trees = add(plan.trees), padding = add(plan.padding);
    const CurrentDevice current(device_);
    check(cudaMalloc(&memory_, host_.size()), "linear_plan: " + std::to_string(host_.size()) + " bytes");
    const cudaError_t copied = cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice);
    if (copied != cudaSuccess) (void)cudaFree(memory_);
    check(copied, "linear_plan: copying its tables");
    const auto* const begin = static_cast<const std::byte*>(memory_);
    tables_.view = {reinterpret_cast<const WalkStretch*>(begin + stretches),
                    reinterpret_cast<const int*>(begin + order),
                    reinterpret_cast<const int*>(begin + steps),
                    reinterpret_cast<const WalkTree*>(begin + trees),
                    plan.steps(),
                    static_cast<int>(content.problem.heads),
                    false};
    tables_.padding = reinterpret_cast<const std::int64_t*>(begin + padding);
    host_ = {};
  }
  /// cudaFree() waits for the device, so that no call still reads the tables.
  ~DeviceTables() {
    try {
      const CurrentDevice current(device_);
      (void)cudaFree(memory_);
    } catch (const Error&) {  // there is no caller to tell
    }
  }
  DeviceTables(const DeviceTables&) = delete;
  DeviceTables& operator=(const DeviceTables&) = delete;

  const WalkTables& tables() const { return tables_; }

 private:
  /// Returns where the table begins.
  template <class Row>
  std::size_t add(const std::vector<Row>& table) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t at = (host_.size() + kAlignment - 1) / kAlignment * kAlignment,
                      bytes = table.size() * sizeof(Row);
    host_.resize(at + bytes + kAlignment);
    if (bytes != 0) std::memcpy(host_.data() + at, table.data(), bytes);
    return at;
  }

  Device device_;
  WalkTables tables_;
  std::vector<std::byte> host_;
  void* memory_ = nullptr;
};

template <class Tensors>
void check_alignment(const char* call, std::initializer_list<std::pair<const char*, const TensorView*>> tensors) {
  for (const auto& [name, tensor] : tensors) check_rows((std::string(call) + ": " + name).c_str(), *tensor);
}

void check_alignment(const LinearForwardTensors& t) {
  check_alignment<LinearForwardTensors>("linear_forward", {{"q", &t.q}, {"k", &t.k}, {"v", &t.v}, {"o", &t.o}});
}
void check_alignment(const LinearBackwardTensors& t) {
  check_alignment<LinearBackwardTensors>("linear_backward", {{"q", &t.q},
                                                             {"k", &t.k},
                                                             {"v", &t.v},
                                                             {"o", &t.o},
                                                             {"grad_o", &t.grad_o},
                                                             {"grad_q", &t.grad_q},
                                                             {"grad_k", &t.grad_k},
                                                             {"grad_v", &t.grad_v}});
}

template <class T>
class WalkKernel final : public LinearKernel {
 public:
  WalkKernel()
      : LinearKernel({std::string(kLarge.name) + ".linear." + to_string(kDType<T>) + ".d" + std::to_string(kMostDim) +
                          "v" + std::to_string(kMostDim) + ".s" + std::to_string(kWalkTokens),
                      kLarge.name, kDType<T>, DeviceType::cuda, kMostDim, kMostDim}) {}

  std::string refusal() const override { return device_refusal(needs(0)); }
  std::string refusal(const LinearProblem& problem) const override {
    for (const auto& [name, dim] : {std::pair{"key_dim", problem.key_dim}, {"value_dim", problem.value_dim}})
      if (dim > kMostDim || dim % 8 != 0)
        return std::string(name) + " is " + std::to_string(dim) + "; expected a multiple of 8 up to " +
               std::to_string(kMostDim) + " on a GPU: pad with zeros, or give CPU tensors";
    return device_refusal(problem.device, needs(linear_shared_bytes<T>(problem)));
  }

  std::shared_ptr<const void> prepare(const LinearPlanContent& plan) const override {
    return std::make_shared<const DeviceTables>(plan);
  }

  std::size_t workspace_bytes(const LinearPlanContent& plan, const LinearForwardTensors& tensors) const override {
    return bytes_of(plan, tensors);
  }
  std::size_t workspace_bytes(const LinearPlanContent& plan, const LinearBackwardTensors& tensors) const override {
    return bytes_of(plan, tensors);
  }
  void forward(const LinearPlanContent& plan, const LinearForwardTensors& tensors,
               const Execution& execution) const override {
    run("linear_forward", plan, tensors, execution);
  }
  void backward(const LinearPlanContent& plan, const LinearBackwardTensors& tensors,
                const Execution& execution) const override {
    run("linear_backward", plan, tensors, execution);
  }

 private:
  static DeviceNeeds needs(std::size_t shared_bytes) { return {kLarge.capability, false, shared_bytes, 1}; }
  static const WalkTables& tables(const LinearPlanContent& plan) {
    return static_cast<const DeviceTables*>(plan.prepared.get())->tables();
  }

  template <class Tensors>
  static std::size_t bytes_of(const LinearPlanContent& plan, const Tensors& tensors) {
    return plan.prepared == nullptr ? 0 : launch_linear<T>(plan.problem, tables(plan), tensors, nullptr, nullptr);
  }

  template <class Tensors>
  static void run(const char* call, const LinearPlanContent& plan, const Tensors& tensors, const Execution& execution) {
    check_alignment(tensors);
    const CurrentDevice current(plan.problem.device);
    const std::size_t bytes = bytes_of(plan, tensors);
    std::shared_ptr<void> own;
    void* workspace = execution.workspace;
    if (workspace == nullptr) {
      own = device_memory(plan.problem.device, execution.stream, bytes);
      workspace = own.get();
    } else if (execution.workspace_bytes < bytes) {
      throw Error(Status::invalid_argument, std::string(call) + ": the workspace has " +
                                                std::to_string(execution.workspace_bytes) + " bytes; expected " +
                                                std::to_string(bytes) + ", as linear_workspace_bytes() says");
    }
    launch_linear<T>(plan.problem, tables(plan), tensors, static_cast<std::byte*>(workspace), execution.stream);
  }
};

}  // namespace

LinearKernels linear_kernels() {
  LinearKernels kernels;
  kernels.push_back(std::make_unique<const WalkKernel<__nv_bfloat16>>());
  kernels.push_back(std::make_unique<const WalkKernel<__half>>());
  return kernels;
}

}  // namespace flashmask::cuda::sm80
