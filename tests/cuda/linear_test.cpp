// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/linear_attention.h"
#include "kit/corpus.h"
#include "kit/linear_tensors.h"
#include "kit/placed_linear.h"

/// Linear attention on a GPU against the recurrence in double precision. tests/emulator has more cases of the same
/// code.
namespace flashmask {
namespace {

using check::Gates;
using check::HostTensor;
using check::LinearTensors;
using check::RandomNumbers;

LinearProblem problem_of(DType dtype, std::int64_t length, bool normalize, std::int64_t key_dim = 24,
                         std::int64_t value_dim = 40) {
  LinearProblem problem;
  problem.length = length;
  problem.heads = problem.key_heads = 1;
  problem.key_dim = key_dim;
  problem.value_dim = value_dim;
  problem.dtype = dtype;
  problem.device = {DeviceType::cuda, 0};
  problem.normalize = normalize;
  return problem;
}

/// Shares of the largest number. States are kept in bfloat16 for the gradient of log_forget. Rows whose divisor is
/// nearly 0 are badly conditioned: their gradients of q have up to four times the error of others.
double bound(DType dtype, const std::string& output) {
  if (dtype == DType::bf16) return 1.4e-2;
  return output == "grad_log_forget" ? 5e-3 : 2e-3;
}

std::vector<std::string> runnable_kernels() {
  std::vector<std::string> names;
  for (const LinearKernelInfo& kernel : linear_kernels())
    if (kernel.device == DeviceType::cuda && why_not_linear(kernel.name).empty()) names.push_back(kernel.name);
  return names;
}

/// By the name of a kernel; one that computes no gradients has another one's.
class CudaLinear : public testing::TestWithParam<std::string> {
 protected:
  static DType dtype() { return GetParam().find(".bf16.") != std::string::npos ? DType::bf16 : DType::f16; }
  static LinearPlan plan_of(const Mask& mask, const LinearProblem& problem) {
    LinearPlan planned = linear_plan(mask, problem, GetParam());
    EXPECT_EQ(planned.kernel(), GetParam());
    return planned;
  }
  void run(const LinearPlan& planned, const LinearTensors& tensors) const {
    const check::PlacedLinearTensors gpu(tensors, planned.problem().device);
    linear_forward(planned, gpu.forward());
    linear_backward(planned, gpu.backward());
    gpu.fetch();
  }

  void expect_reference(const Mask& mask, const LinearProblem& problem, const Gates& gates = check::mild_gates(),
                        bool states = false) const {
    const LinearPlan planned = plan_of(mask, problem);
    const LinearTensors tensors(planned, 7, gates, states);
    run(planned, tensors);
    for (const check::LinearError& error : linear_errors(planned, mask, tensors))
      EXPECT_LT(error.worst, bound(problem.dtype, error.name))
          << error.name << ", " << mask.description() << " of " << problem.length << ", gates " << gates.name
          << ", normalize " << problem.normalize << ", " << problem.key_dim << " x " << problem.value_dim;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaLinear, testing::ValuesIn(runnable_kernels()), [](const auto& kernel) {
  std::string name = kernel.param;
  std::ranges::replace(name, '.', '_');
  return name;
});

TEST_P(CudaLinear, MasksOfTheCorpusThatAreTreesEqualTheReference) {
  int served = 0;
  for (const corpus::Case& each : corpus::cases(1)) {
    if (each.size.rows != each.size.columns || each.size.rows < 16 || each.size.rows > 200) continue;
    const Mask mask = each.mask();
    if (!check::is_tree(mask)) continue;
    ++served;
    expect_reference(mask, problem_of(dtype(), each.size.rows, served % 2 == 0), check::mild_gates(), served % 3 == 0);
  }
  EXPECT_GT(served, 10);
}

TEST_P(CudaLinear, LengthsDimsAndGroupsEqualTheReference) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    expect_reference(masks::causal(length, length), problem_of(dtype(), length, false), check::mild_gates(), true);
  const Mask mask = masks::shared_question({{{50, {40, 3}}, {20, {1, 10}}}}, 140);
  struct Dims {
    std::int64_t key, value, heads, key_heads;
  };
  for (const Dims& dims : std::vector<Dims>{{64, 64, 2, 1}, {128, 128, 1, 1}, {128, 64, 16, 4}, {8, 120, 3, 1}})
    for (const bool normalize : {false, true}) {
      LinearProblem problem = problem_of(dtype(), 140, normalize, dims.key, dims.value);
      problem.batch = 2, problem.heads = dims.heads, problem.key_heads = dims.key_heads;
      expect_reference(mask, problem, check::mild_gates(), normalize);
    }
}

TEST_P(CudaLinear, DecaysAloneEqualTheReference) {
  for (const std::int64_t length : {1, 2, 16, 17, 63, 64, 65, 128, 130})
    expect_reference(masks::causal(length, length), problem_of(dtype(), length, false, 8, 8), check::decays());
  const Mask mask = masks::tree({-1, 0, 0, 2, 2, 2, 0, -1, 7, 7}, {100, 70, 30, 40, 65, 9, 20, 24, 3, 40}, 410).mask;
  struct Dims {
    std::int64_t key, value, heads, key_heads;
  };
  for (const Dims& dims : std::vector<Dims>{{24, 40, 1, 1}, {128, 128, 35, 35}, {128, 64, 16, 4}}) {
    LinearProblem problem = problem_of(dtype(), 410, false, dims.key, dims.value);
    problem.heads = dims.heads, problem.key_heads = dims.key_heads;
    problem.batch = dims.heads == 1 ? 2 : 1;
    expect_reference(mask, problem, check::decays());
    expect_reference(mask, problem, {"none", {}, {}});
  }
  expect_reference(masks::causal_document({900, 40, 700}, 1650), problem_of(dtype(), 1650, false), check::decays());
}

TEST_P(CudaLinear, LongNodesWithBranchesEqualTheReference) {
  const Mask mask = masks::tree({-1, 0, 0, 2, -1}, {1100, 70, 2100, 40, 130}, 3450).mask;
  for (const bool normalize : {false, true})
    for (const bool states : {false, true})
      expect_reference(mask, problem_of(dtype(), 3450, normalize, 24, 72), check::long_memory(), states);
}

/// The outputs of a call, one after the other.
std::vector<const HostTensor*> outputs(const LinearTensors& t) {
  std::vector<const HostTensor*> all = {&t.o, &t.grad_q, &t.grad_k, &t.grad_v, &*t.grad_log_forget};
  if (t.grad_log_input) all.push_back(&*t.grad_log_input);
  return all;
}

TEST_P(CudaLinear, EveryRunAndADocumentAloneHaveTheSameBits) {
  const std::vector<std::int64_t> lengths = {70, 1300, 64, 1, 500};
  for (const auto& [gates, normalize] : std::vector<std::pair<Gates, bool>>{
           {check::mild_gates(), false}, {check::mild_gates(), true}, {check::decays(), false}}) {
    const LinearPlan packed = plan_of(masks::causal_document(lengths, 2000), problem_of(dtype(), 2000, normalize));
    const LinearTensors all(packed, 5, gates), again(packed, 5, gates);
    run(packed, all);
    run(packed, again);
    for (std::size_t output = 0; output < outputs(all).size(); ++output)
      EXPECT_EQ(outputs(all)[output]->values(), outputs(again)[output]->values()) << "output " << output;
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      const LinearPlan single = plan_of(masks::causal(length, length), problem_of(dtype(), length, normalize));
      LinearTensors alone(single, 1, gates);
      const auto copy = [&](const HostTensor& from, HostTensor& to) {
        for (std::int64_t i = 0; i < to.size(); ++i) to.set(i, from.at(begin * from.stride(1) + i));
      };
      copy(all.q, alone.q), copy(all.k, alone.k), copy(all.v, alone.v), copy(all.grad_o, alone.grad_o);
      copy(*all.log_forget, *alone.log_forget);
      if (all.log_input) copy(*all.log_input, *alone.log_input);
      run(single, alone);
      for (std::size_t output = 0; output < outputs(alone).size(); ++output) {
        const HostTensor &own = *outputs(alone)[output], &whole = *outputs(all)[output];
        for (std::int64_t i = 0; i < own.size(); ++i)
          ASSERT_EQ(own.at(i), whole.at(begin * whole.stride(1) + i)) << "output " << output << " of " << length;
      }
      begin += length;
    }
  }
}

/// As many trees as blocks, and many more, so that a block walks one after the other.
TEST_P(CudaLinear, ManyHeadsAndDocumentsEqualTheReference) {
  for (const std::int64_t documents : {1, 7, 30}) {
    const Mask mask =
        masks::causal_document(std::vector<std::int64_t>(static_cast<std::size_t>(documents), 23), 23 * documents + 5);
    LinearProblem problem = problem_of(dtype(), 23 * documents + 5, documents == 7);
    problem.heads = problem.key_heads = 35;
    expect_reference(mask, problem);
  }
}

/// Heads of xLSTM-7B, whose keys and values are cut into slices.
TEST(CudaLinearWide, KeysOf256AndValuesOf512EqualTheReference) {
  const Mask mask = masks::shared_question({{{150, {140, 3}}, {20, {1, 110}}}}, 440);
  for (const std::string& kernel : runnable_kernels())
    for (const bool normalize : {false, true}) {
      const DType dtype = kernel.find(".bf16.") == std::string::npos ? DType::f16 : DType::bf16;
      LinearProblem problem = problem_of(dtype, 440, normalize, 256, 512);
      problem.batch = 2, problem.heads = 2, problem.key_heads = normalize ? 2 : 1;
      const LinearPlan planned = linear_plan(mask, problem, kernel);
      const LinearTensors tensors(planned, 7, check::mild_gates(), true);
      const check::PlacedLinearTensors gpu(tensors, problem.device);
      linear_forward(planned, gpu.forward());
      linear_backward(planned, gpu.backward());
      gpu.fetch();
      for (const check::LinearError& error : linear_errors(planned, mask, tensors))
        EXPECT_LT(error.worst, bound(dtype, error.name)) << kernel << ", " << error.name << ", normalize " << normalize;
    }
}

TEST(CudaLinearRefusals, SayWhatIsServed) {
  const auto refusal = [](const LinearProblem& problem) -> std::string {
    try {
      (void)linear_plan(masks::causal(problem.length, problem.length), problem);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(refusal(problem_of(DType::f32, 10, false)).find("GPUs compute bfloat16 and float16"), std::string::npos);
  EXPECT_NE(
      refusal(problem_of(DType::bf16, 10, false, 264, 64)).find("key_dim is 264; expected a multiple of 8 up to 256"),
      std::string::npos);
  EXPECT_NE(refusal(problem_of(DType::bf16, 10, false, 64, 20)).find("value_dim is 20"), std::string::npos);
}

}  // namespace
}  // namespace flashmask
