// SPDX-License-Identifier: Apache-2.0
#include "plan/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/padding_rows.h"
#include "cuda/sm80/walk/link_kernels.cuh"
#include "cuda/sm80/walk/sliced_calls.cuh"
#include "emulator/launcher.h"
#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "kit/linear_tensors.h"

/// Linear attention on the emulator, all launches of it, against the recurrence in double precision.
namespace flashmask::cuda::sm80 {
namespace {

using check::Gates;
using check::HostTensor;
using check::LinearTensors;
using check::RandomNumbers;
using emulator::Copies;
using emulator::EmulatedLauncher;

template <class T>
void run(const LinearPlan& planned, const LinearTensors& tensors, Copies copies) {
  const WalkPlan plan(planned.content());
  const WalkPlanView view{plan.stretches.data(),
                          plan.order.data(),
                          plan.stretch_of_step.data(),
                          plan.trees.data(),
                          plan.steps(),
                          static_cast<int>(planned.problem().heads),
                          false};
  EmulatedLauncher launcher(copies);
  SlicedCalls<T, EmulatedLauncher>(planned.problem(), plan, view, plan.padding.data(), launcher)
      .forward(tensors.forward());
  SlicedCalls<T, EmulatedLauncher>(planned.problem(), plan, view, plan.padding.data(), launcher)
      .backward(tensors.backward());
}

void run(const LinearPlan& planned, const LinearTensors& tensors, Copies copies = Copies::either) {
  if (planned.problem().dtype == DType::bf16)
    run<__nv_bfloat16>(planned, tensors, copies);
  else
    run<__half>(planned, tensors, copies);
}

LinearProblem problem_of(std::int64_t length, bool normalize, std::int64_t key_dim = 24, std::int64_t value_dim = 40) {
  LinearProblem problem;
  problem.length = length;
  problem.heads = problem.key_heads = 1;
  problem.key_dim = key_dim;
  problem.value_dim = value_dim;
  problem.dtype = DType::bf16;
  problem.normalize = normalize;
  return problem;
}

void expect_reference(const Mask& mask, const LinearProblem& problem, const Gates& gates = check::mild_gates(),
                      bool states = false) {
  const LinearPlan planned = linear_plan(mask, problem);
  const LinearTensors tensors(planned, 7, gates, states);
  run(planned, tensors);
  for (const check::LinearError& error : linear_errors(planned, mask, tensors))
    EXPECT_LT(error.worst, problem.dtype == DType::bf16      ? 1.2e-2
                           : error.name == "grad_log_forget" ? 5e-3
                                                             : 2e-3)
        << error.name << ", " << mask.description() << " of " << problem.length << ", gates " << gates.name
        << ", normalize " << problem.normalize << ", " << problem.key_dim << " x " << problem.value_dim;
}

TEST(EmulatedLinear, MasksOfTheCorpusThatAreTreesEqualTheReference) {
  int served = 0;
  for (const corpus::Case& each : corpus::cases(1)) {
    if (each.size.rows != each.size.columns || each.size.rows < 16 || each.size.rows > 200) continue;
    const Mask mask = each.mask();
    if (!check::is_tree(mask)) continue;
    if (++served % 8 == 0)
      expect_reference(mask, problem_of(each.size.rows, served % 16 == 0), check::mild_gates(), true);
  }
  EXPECT_GT(served, 10);
}

TEST(EmulatedLinear, WideHeadsEqualTheReferenceInSlices) {
  struct Dims {
    std::int64_t key, value, heads, key_heads;
    DType dtype;
    bool normalize, states;
  };
  for (const Dims& dims : std::vector<Dims>{{136, 136, 2, 1, DType::bf16, true, true},
                                            {256, 512, 1, 1, DType::bf16, true, true},
                                            {128, 136, 1, 1, DType::f16, true, false},
                                            {200, 64, 2, 2, DType::f16, false, true}}) {
    LinearProblem problem = problem_of(100, dims.normalize, dims.key, dims.value);
    problem.heads = dims.heads, problem.key_heads = dims.key_heads, problem.dtype = dims.dtype;
    expect_reference(masks::shared_question({{{30, {40, 3}}, {10, {1, 10}}}}, 100), problem, check::mild_gates(),
                     dims.states);
  }
  expect_reference(masks::causal(1100, 1100), problem_of(1100, true, 136, 16), check::long_memory());
}

TEST(EmulatedLinear, EveryLengthEqualsTheReference) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    expect_reference(masks::causal(length, length), problem_of(length, length % 2 == 0, 8, 8), check::mild_gates(),
                     length % 3 == 0);
}

TEST(EmulatedLinear, HeadDimsAndGroupsEqualTheReference) {
  struct Dims {
    std::int64_t key, value, heads, key_heads;
    DType dtype;
  };
  const Mask mask = masks::shared_question({{{50, {40, 3}}, {20, {1, 10}}}}, 140);
  for (const Dims& dims : std::vector<Dims>{{64, 64, 2, 1, DType::f16},
                                            {128, 128, 1, 1, DType::bf16},
                                            {128, 64, 4, 2, DType::bf16},
                                            {8, 120, 3, 1, DType::f16}}) {
    LinearProblem problem = problem_of(140, dims.heads != 4, dims.key, dims.value);
    problem.heads = dims.heads, problem.key_heads = dims.key_heads, problem.dtype = dims.dtype;
    problem.batch = dims.heads == 2 ? 2 : 1;
    SCOPED_TRACE("key_dim " + std::to_string(dims.key) + ", value_dim " + std::to_string(dims.value));
    expect_reference(mask, problem, check::mild_gates(), dims.key != 64);
  }
}

/// Several stretches, with forks behind them, and with states that come in and go out or none.
TEST(EmulatedLinear, LongNodesWithBranchesEqualTheReference) {
  const Mask mask = masks::tree({-1, 0, 0, 2, -1}, {1100, 70, 2100, 40, 130}, 3450).mask;
  for (const bool normalize : {false, true})
    expect_reference(mask, problem_of(3450, normalize, 8, 16), check::long_memory(), normalize);
}

TEST(EmulatedLinear, GatesOfEveryRegimeEqualTheReference) {
  for (const check::Regime& regime : check::gate_regimes())
    expect_reference(masks::causal_document({150, 13, 64, 1}, 230), problem_of(230, regime.normalize), regime.gates);
}

/// The outputs of a call, one after the other.
std::vector<const HostTensor*> outputs(const LinearTensors& t) {
  return {&t.o, &t.grad_q, &t.grad_k, &t.grad_v, &*t.grad_log_forget, &*t.grad_log_input};
}

TEST(EmulatedLinear, ADocumentHasTheBitsThatItHasAlone) {
  const std::vector<std::int64_t> lengths = {70, 13, 64, 1};
  for (const bool normalize : {false, true}) {
    const LinearPlan packed = linear_plan(masks::causal_document(lengths, 155), problem_of(155, normalize));
    const LinearTensors all(packed, 5);
    run(packed, all, Copies::early);
    const LinearTensors again(packed, 5);
    run(packed, again, Copies::late);
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      const LinearPlan single = linear_plan(masks::causal(length, length), problem_of(length, normalize));
      LinearTensors alone(single, 1);
      const auto copy = [&](const HostTensor& from, HostTensor& to) {
        for (std::int64_t i = 0; i < to.size(); ++i) to.set(i, from.at(begin * from.stride(1) + i));
      };
      copy(all.q, alone.q), copy(all.k, alone.k), copy(all.v, alone.v), copy(all.grad_o, alone.grad_o);
      copy(*all.log_forget, *alone.log_forget), copy(*all.log_input, *alone.log_input);
      run(single, alone);
      for (std::size_t output = 0; output < outputs(alone).size(); ++output) {
        const HostTensor &own = *outputs(alone)[output], &whole = *outputs(all)[output];
        for (std::int64_t i = 0; i < own.size(); ++i)
          ASSERT_EQ(own.at(i), whole.at(begin * whole.stride(1) + i)) << "output " << output << " of " << length;
      }
      begin += length;
    }
    for (std::size_t output = 0; output < outputs(all).size(); ++output) {
      const HostTensor &one = *outputs(all)[output], &other = *outputs(again)[output];
      EXPECT_EQ(one.values(), other.values()) << "output " << output << ", late copies";
      for (std::int64_t i = begin * one.stride(1); i < one.size(); ++i) EXPECT_EQ(one.at(i), 0) << "padding";
    }
  }
}

TEST(EmulatedLinear, NanStaysInItsTreeAndInItsBranch) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const Mask mask = masks::tree({-1, -1, 1, 1, -1}, {40, 50, 30, 20, 25}, 165).mask;
  for (const bool normalize : {false, true}) {
    const LinearPlan planned = linear_plan(mask, problem_of(165, normalize, 16, 24));
    const LinearTensors clean(planned, 9);
    run(planned, clean);
    LinearTensors dirty(planned, 9);
    for (HostTensor* each : {&dirty.q, &dirty.k, &dirty.v, &dirty.grad_o, &*dirty.log_forget, &*dirty.log_input})
      for (std::int64_t i = 0, width = each->stride(1); i < each->size(); ++i) {
        const std::int64_t token = i / width;  // in the first document, and in the first of two answers
        if (token < 40 || (token >= 90 && token < 120)) each->set(i, i % 2 == 0 ? kNan : kInfinity);
      }
    run(planned, dirty);
    for (std::size_t output = 0; output < outputs(clean).size(); ++output) {
      const HostTensor &a = *outputs(clean)[output], &b = *outputs(dirty)[output];
      for (std::int64_t i = 0, width = a.stride(1); i < a.size(); ++i) {
        const std::int64_t token = i / width;
        if (token < 40 || (token >= 90 && token < 120) || (output > 0 && token < 140)) continue;
        ASSERT_EQ(a.at(i), b.at(i)) << "output " << output << ", token " << token;
      }
    }
  }
}

}  // namespace
}  // namespace flashmask::cuda::sm80
