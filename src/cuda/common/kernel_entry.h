// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/instances.h"
#include "cuda/common/problem_refusal.h"
#include "cuda/compile/compiled_kernel.h"
#include "cuda/compile/nvrtc.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"
#include "plan/kernel.h"

/// What the kernel table's entries for NVIDIA's GPUs have in common.
namespace flashmask::cuda {

template <class T>
constexpr DType kDType = DType::bf16;
template <>
constexpr DType kDType<__half> = DType::f16;

/// The GPUs that kernels are for: what the kernels' names begin with, and the compute capability their code needs.
struct Architecture {
  const char* name;
  ComputeCapability capability;
};

/// The head dim of q and k, and that of v.
struct HeadDims {
  int head_dim, value_dim;
};

inline std::string to_string(HeadDims dims) {
  const std::string head = std::to_string(dims.head_dim);
  return dims.value_dim == dims.head_dim ? head : head + "v" + std::to_string(dims.value_dim);
}

template <class Shape>
inline constexpr TileShape kTile{Shape::kRows, Shape::kColumns};

/// The most bytes of a map that only serves to choose between kernels (8 MB): a larger one, for many masks or very long
/// ones, costs more than it saves.
inline constexpr std::size_t kMostChoiceBytes = std::size_t{8} << 20;

/// Describes a kernel for heads of up to `dims`, in its entry for one form of masks. `tiles`: as in its name, such as
/// m128n128; `features`: besides those that all of these kernels have.
template <class Shape>
KernelInfo info_of(const Architecture& architecture, Direction direction, MaskForm form, HeadDims dims,
                   const std::string& tiles, Features features) {
  KernelInfo info;
  info.arch = architecture.name;
  info.capability = architecture.capability;
  info.direction = direction;
  info.dtype = kDType<typename Shape::Element>;
  info.device = DeviceType::cuda;
  info.tile = {Shape::kRows, Shape::kColumns};
  info.predicate = form;
  info.head_dim = dims.head_dim;
  info.value_dim = dims.value_dim;
  info.features = features | Features{Feature::block_map};
  info.name = info.arch + "." + to_string(direction) + "." + to_string(info.dtype) + ".d" + to_string(dims) + "." +
              tiles + "." + to_string(form);
  return info;
}

template <class Shape>
std::string tile_name() {
  return "m" + std::to_string(Shape::kRows) + "n" + std::to_string(Shape::kColumns);
}

/// Base: ForwardKernel or BackwardKernel.
template <class Base>
class KernelEntry : public Base {
 public:
  /// combines: whether there is a kernel for each set of what its kernels do to scores and probabilities. biases_above:
  /// the head dim up to which it takes no bias with a value for each score, since another family's kernels are faster.
  KernelEntry(KernelInfo info, const DeviceNeeds& needs, bool combines = true, int biases_above = 0)
      : Base(std::move(info)), needs_(needs), combines_(combines), biases_above_(biases_above) {}

  std::string refusal() const final { return device_refusal(needs_); }
  std::string refusal(Device device) const final { return device_refusal(device, needs_); }
  std::string refusal(const GpuKind& kind) const final {
    return device_refusal(
        "a GPU", {kind.architecture, kind.capability, 0, kind.block_shared_bytes, kind.shared_bytes, 0}, needs_);
  }
  std::string refusal(const Problem& problem) const final {
    const int changes =
        compiles_change(problem) ? 1 : (problem.change.cap() > 0) + (problem.change.bias() != ScoreBias::none);
    if (!combines_ && has_dropout(problem) + changes > 1)
      return "it drops probabilities, caps scores, biases them or changes them otherwise, one of these at a time";
    if (problem.change.bias() == ScoreBias::tensor && problem.head_dim <= biases_above_)
      return "it adds a bias of each score to heads of more than " + std::to_string(biases_above_) + " dims only";
    const std::string reason = refusal(problem.device);
    return reason.empty() ? problem_refusal(problem) : reason;
  }
  std::string lacks(const Problem& problem) const final {
    const bool compiles = compiles_change(problem) && this->info().features.has(Feature::any_change);
    return compiles ? compile::nvrtc_refusal() : "";
  }
  double measure_peak() const final {
    throw Error(Status::unsupported, this->info().name + ": the peak of a GPU is not measured");
  }

 private:
  DeviceNeeds needs_;
  bool combines_;
  int biases_above_;
};

/// KernelEntry's biases_above of a family that says kBiasesAbove; others take all.
template <class Family>
constexpr int biases_above() {
  if constexpr (requires { Family::kBiasesAbove; })
    return Family::kBiasesAbove;
  else
    return 0;
}

/// What a launcher, or the steps of a backward, have compiled for a problem's change of scores: nothing, unless they
/// say.
template <class Launches>
std::vector<KernelCode> compiled_code_of(const Launches& launches, const Problem& problem, std::size_t block_bytes) {
  if constexpr (requires { launches.compiled_code(problem, block_bytes); })
    return launches.compiled_code(problem, block_bytes);
  else
    return {};
}

/// Asks for as much shared memory as there is, so that as many blocks fit as registers allow; where a call reads a bias
/// tensor through the L1 cache, for no more than `blocks` blocks take, so that the cache has the rest.
template <class Memory, class Kernel>
void divide_memory(const char* what, Kernel kernel, int blocks, const Problem& problem) {
  int percent = cudaSharedmemCarveoutMaxShared;
  if (has_bias_tensor(problem)) {
    const std::size_t all = device_facts(problem.device).shared_bytes;
    percent =
        static_cast<int>(std::min<std::size_t>((100 * shared_of_blocks(sizeof(Memory), blocks) + all - 1) / all, 100));
  }
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent), what, ": shared memory");
}

}  // namespace flashmask::cuda
