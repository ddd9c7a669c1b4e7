#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/kernels.h"

/// The rows of the kernel table for GPUs, as tests take them one by one.
namespace flashmask::check {

inline std::vector<KernelInfo> cuda_kernels(Direction direction) {
  std::vector<KernelInfo> chosen;
  for (const KernelInfo& kernel : kernels())
    if (kernel.device == DeviceType::cuda && kernel.direction == direction) chosen.push_back(kernel);
  return chosen;
}

/// Letters, digits and underscores of a kernel's name.
inline std::string test_name(const testing::TestParamInfo<KernelInfo>& info) {
  std::string name = info.param.name;
  for (char& letter : name)
    if (letter == '.' || letter == '+') letter = '_';
  return name;
}

/// Of the kernel's name, such as 128 in sm90.forward.bf16.d128.m128n128.intervals.
inline std::int64_t head_dim_of(const KernelInfo& kernel) {
  return std::stoll(kernel.name.substr(kernel.name.find(".d") + 2));
}

/// 128 in sm90.forward.bf16.d192v128.m128n128.intervals; without a "v" that of the heads.
inline std::int64_t value_dim_of(const KernelInfo& kernel) {
  const std::size_t at = kernel.name.find(".d") + 2, value = kernel.name.find('v', at);
  return value < kernel.name.find('.', at) ? std::stoll(kernel.name.substr(value + 1)) : head_dim_of(kernel);
}

}  // namespace flashmask::check
