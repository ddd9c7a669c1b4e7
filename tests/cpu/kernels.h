// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/kernels.h"
#include "kit/host_tensor.h"

/// What the kernel tests share: every level of the machine, by the name a user would force.
namespace flashmask::test {

/// One instruction set with one dtype and one predicate.
struct Level {
  std::string arch;
  DType dtype = DType::f32;
  MaskForm form = MaskForm::intervals;

  /// A prefix that names both directions.
  std::string prefix() const { return arch + "."; }
};

inline std::vector<Level> levels() {
  std::vector<Level> all;
  for (const KernelInfo& kernel : kernels())
    if (kernel.device == DeviceType::cpu && kernel.direction == Direction::forward && why_not(kernel).empty())
      all.push_back({kernel.arch, kernel.dtype, kernel.predicate});
  return all;
}

inline std::string name_of(const Level& level) {
  return level.arch + "_" + to_string(level.dtype) + "_" + to_string(level.form);
}

inline std::string level_name(const testing::TestParamInfo<Level>& info) { return name_of(info.param); }

/// What GoogleTest calls a parameter by.
inline void PrintTo(const Level& level, std::ostream* out) { *out << name_of(level); }

/// Sanitizer builds run ten times slower: they take fewer cases.
inline bool small_tests() {
  const char* size = std::getenv("FLASHMASK_TEST_SIZE");
  return size != nullptr && std::string(size) == "small";
}

inline PlanOptions forced(const Level& level, Visit visit = Visit::active) {
  PlanOptions options;
  options.kernel = level.prefix();
  options.form = level.form;
  options.visit = visit;
  return options;
}

/// A mask of either form can be read as bits.
inline bool serves(const Level& level, const Mask& mask) {
  return level.form == MaskForm::bits || mask.lowered().form() == MaskForm::intervals;
}

/// Bitwise, NaN included.
inline bool same_bits(const check::HostTensor& a, const check::HostTensor& b) {
  const auto bytes = static_cast<std::size_t>(a.size()) * size_in_bytes(a.view().dtype);
  return a.size() == b.size() && std::memcmp(a.view().data, b.view().data, bytes) == 0;
}

inline void expect_same_results(const check::AttentionTensors& a, const check::AttentionTensors& b) {
  EXPECT_TRUE(same_bits(a.o, b.o)) << "o";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.grad_q, b.grad_q)) << "grad_q";
  EXPECT_TRUE(same_bits(a.grad_k, b.grad_k)) << "grad_k";
  EXPECT_TRUE(same_bits(a.grad_v, b.grad_v)) << "grad_v";
}

inline void attend(const Plan& planned, const check::AttentionTensors& tensors, Executor* executor = nullptr) {
  Execution execution;
  execution.executor = executor;
  forward(planned, tensors.forward(), execution);
  backward(planned, tensors.backward(), execution);
}

inline bool all_finite(const check::HostTensor& tensor) {
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    if (!std::isfinite(tensor.at(i))) return false;
  return true;
}

inline bool all_equal(const check::HostTensor& tensor, float value) {
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    if (tensor.at(i) != value) return false;
  return true;
}

class EveryLevel : public testing::TestWithParam<Level> {
 protected:
  Problem problem(std::int64_t rows, std::int64_t columns) const {
    Problem p;
    p.query_length = rows;
    p.key_length = columns;
    p.head_dim = p.value_dim = 40;
    p.dtype = GetParam().dtype;
    return p;
  }
};

}  // namespace flashmask::test
