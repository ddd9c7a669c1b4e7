#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <utility>

#include "cuda/device.h"
#include "cuda/sm90/problem_refusal.h"
#include "cuda/status.h"
#include "plan/kernel.h"

/// What the rows of the kernel table for Hopper have in common.
namespace flashmask::cuda::sm90 {

template <class T>
constexpr DType kDType = DType::bf16;
template <>
constexpr DType kDType<__half> = DType::f16;

/// `heads` and `tiles` as the name says them, such as 128 and m128n128.
template <class Shape>
KernelInfo info_of(Direction direction, const std::string& heads, const std::string& tiles) {
  KernelInfo info;
  info.arch = "sm90";
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
  KernelRow(KernelInfo info, int head_dim, int value_dim)
      : Base(std::move(info)), head_dim_(head_dim), value_dim_(value_dim) {}

  std::string refusal() const final { return capability_refusal(9, 0); }
  std::string refusal(const Problem& problem) const final {
    const std::string reason = capability_refusal(problem.device, 9, 0);
    return reason.empty() ? problem_refusal(problem, head_dim_, value_dim_) : reason;
  }
  double measure_peak() const final {
    throw Error(Status::unsupported, this->info().name + ": the peak of a GPU is not measured");
  }

 private:
  int head_dim_, value_dim_;
};

}  // namespace flashmask::cuda::sm90
