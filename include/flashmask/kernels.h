// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/features.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/schedule.h"

namespace flashmask {

/// The compute capability of a CUDA device, such as 9.0.
struct ComputeCapability {
  int major = 0;
  int minor = 0;

  friend auto operator<=>(const ComputeCapability&, const ComputeCapability&) = default;
};

/// An entry of the kernel table: what it computes, and what it can do. `name` is for people and follows the grammar
/// <arch>.<direction>.<dtype>.d<head>[v<value dim>].m<rows>n<columns>[+<small tiles>].<predicate>[.deterministic].
struct KernelInfo {
  std::string name;
  std::string arch;  ///< scalar, avx2, avx512, avx512bf16, neon, neonbf16, sm80, sm86, sm90
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  DeviceType device = DeviceType::cpu;
  TileShape tile;
  MaskForm predicate = MaskForm::intervals;
  std::int64_t head_dim = 0;          ///< the largest head_dim that it takes
  std::int64_t value_dim = 0;         ///< the largest value_dim that it takes
  Features features;                  ///< the features that it has
  ComputeCapability capability = {};  ///< the lowest that it runs on, for sm90 the only one; 0.0 for CPU kernels
};

/// Returns every kernel of this build, best first for each direction, dtype and predicate.
FLASHMASK_API std::vector<KernelInfo> kernels();

/// Returns the kernel table as text, for people: for each device, direction and dtype the kernels that run on this
/// machine with their head dims, or why none does; or every kernel by name, with its tile and why it does not run.
FLASHMASK_API std::string describe_kernels(bool every_kernel = false);

/// Says why plans on this machine do not take a kernel: it cannot run, the override variables exclude it, or it is
/// slower here than others and no override names it. Empty when they do.
FLASHMASK_API std::string why_not(const KernelInfo& kernel);

/// Says why a kernel is refused for a problem on this machine; empty when it can run it.
FLASHMASK_API std::string why_not(const KernelInfo& kernel, const Problem& problem, MaskForm form);

/// Measures the most that a kernel could reach on one core: the rate of its multiply-add (or dot product) on registers
/// alone, in operations per second. Throws Status::unsupported where the kernel cannot run, and for GPU kernels.
FLASHMASK_API double measure_peak(const KernelInfo& kernel);

/// Returns the instruction sets that plans on this machine choose from, best first, such as {"avx512bf16", "avx512",
/// "avx2", "scalar"}.
FLASHMASK_API std::vector<std::string> instruction_sets();

}  // namespace flashmask
