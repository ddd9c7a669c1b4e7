// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "flashmask/kernels.h"

namespace flashmask {

/// What GoogleTest calls a kernel by.
inline void PrintTo(const KernelInfo& kernel, std::ostream* out) { *out << kernel.name; }

}  // namespace flashmask

/// The rows of the kernel table for GPUs, as tests take them one by one.
namespace flashmask::check {

inline std::vector<KernelInfo> cuda_kernels(Direction direction) {
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : kernels())
    if (kernel.device == DeviceType::cuda && kernel.direction == direction) chosen.push_back(kernel);
  return chosen;
}

/// Whether its gradients are the same bits on every run.
inline bool repeats(const KernelInfo& kernel) { return kernel.features.has(Feature::deterministic); }

/// Letters, digits and underscores of a kernel's name.
inline std::string test_name(const testing::TestParamInfo<KernelInfo>& info) {
  std::string name = info.param.name;
  for (char& letter : name)
    if (letter == '.' || letter == '+') letter = '_';
  return name;
}

}  // namespace flashmask::check
