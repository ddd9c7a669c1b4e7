#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <utility>

#include "cuda/common/problem_refusal.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "plan/kernel.h"

/// What the rows of the kernel table for NVIDIA's GPUs have in common.
namespace flashmask::cuda {

template <class T>
constexpr DType kDType = DType::bf16;
template <>
constexpr DType kDType<__half> = DType::f16;

/// GPUs that one folder has kernels for: its name, and the one compute capability that their code runs on.
struct Architecture {
  const char* name;
  int major, minor;
};

/// `heads` and `tiles` as the name says them, such as 128 and m128n128.
template <class Shape>
KernelInfo info_of(const Architecture& architecture, Direction direction, const std::string& heads,
                   const std::string& tiles) {
  KernelInfo info;
  info.arch = architecture.name;
  info.direction = direction;
  info.dtype = kDType<typename Shape::Element>;
  info.device = DeviceType::cuda;
  info.tile = {Shape::kRows, Shape::kColumns};
  info.predicate = Shape::kForm;
  info.name = info.arch + "." + to_string(direction) + "." + to_string(info.dtype) + ".d" + heads + "." + tiles + "." +
              to_string(Shape::kForm);
  return info;
}

template <class Shape>
std::string tile_name() {
  return "m" + std::to_string(Shape::kRows) + "n" + std::to_string(Shape::kColumns);
}

/// Base: ForwardKernel or BackwardKernel.
template <class Base>
class KernelRow : public Base {
 public:
  /// For heads of up to these dims.
  KernelRow(const Architecture& architecture, KernelInfo info, int head_dim, int value_dim)
      : Base(std::move(info)), architecture_(architecture), head_dim_(head_dim), value_dim_(value_dim) {}

  std::string refusal() const final { return capability_refusal(architecture_.major, architecture_.minor); }
  std::string refusal(const Problem& problem) const final {
    const std::string reason = capability_refusal(problem.device, architecture_.major, architecture_.minor);
    return reason.empty() ? problem_refusal(problem, head_dim_, value_dim_) : reason;
  }
  double measure_peak() const final {
    throw Error(Status::unsupported, this->info().name + ": the peak of a GPU is not measured");
  }

 private:
  Architecture architecture_;
  int head_dim_, value_dim_;
};

}  // namespace flashmask::cuda
