// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/common/padding_rows.cuh"
#include "cuda/sm90/walk/gate_gradient.cuh"
#include "cuda/sm90/walk/walk_calls.cuh"
#include "cuda/sm90/walk/walk_visits.h"
#include "emulator/launcher.h"
#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "kit/linear_tensors.h"

/// Hopper's walk of linear attention on the emulator, against the recurrence in double precision.
namespace flashmask::cuda::sm90 {
namespace {

using check::decays;
using check::Gates;
using check::HostTensor;
using check::LinearTensors;
using check::RandomNumbers;
using emulator::Copies;
using emulator::EmulatedLauncher;

template <class T>
void run(const LinearPlan& planned, const LinearTensors& tensors, Copies copies, int blocks, unsigned seed) {
  const LinearProblem& problem = planned.problem();
  const WalkVisits visits(planned.content(), blocks);
  const auto table = [](const VisitList& list) {
    return VisitTable{list.visits.data(), list.begins.data(), list.blocks(), list.slots};
  };
  const WalkTables tables{table(visits.forward), table(visits.rows),        table(visits.queries),
                          table(visits.reverse), visits.steps.data(),       static_cast<int>(visits.steps.size()),
                          visits.padding.data(), std::ssize(visits.padding)};
  EmulatedLauncher launcher(copies, seed);
  WalkCalls<T, EmulatedLauncher> calls(problem, tables, launcher);
  calls.forward(tensors.forward());
  calls.backward(tensors.backward());
}

void run(const LinearPlan& planned, const LinearTensors& tensors, Copies copies = Copies::either, int blocks = 3,
         unsigned seed = 1) {
  if (planned.problem().dtype == DType::bf16)
    run<__nv_bfloat16>(planned, tensors, copies, blocks, seed);
  else
    run<__half>(planned, tensors, copies, blocks, seed);
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
  for (const check::LinearError& error : linear_errors(planned, mask, tensors)) {
    const double bound = problem.dtype == DType::bf16 ? 1.2e-2 : error.name == "grad_log_forget" ? 5e-3 : 2e-3;
    EXPECT_LT(error.worst, bound) << error.name << ", " << mask.description() << " of " << problem.length << ", gates "
                                  << gates.name << ", normalize " << problem.normalize << ", " << problem.key_dim
                                  << " x " << problem.value_dim;
  }
}

/// A tree whose children fork while their parent still has others, and one more.
Mask branches() {
  return masks::tree({-1, 0, 0, 2, 2, 2, 0, -1, 7, 7}, {100, 70, 30, 40, 65, 9, 20, 24, 3, 40}, 410).mask;
}

TEST(EmulatedHopperLinear, GradientsEqualTheReference) {
  for (const std::int64_t length : {1, 2, 16, 17, 63, 64, 65, 128, 130})
    expect_reference(masks::causal(length, length), problem_of(length, false, 8, 8), decays());
  const Mask mask = branches();
  struct Dims {
    std::int64_t key, value, heads, key_heads;
    DType dtype;
  };
  for (const Dims& dims :
       std::vector<Dims>{{24, 40, 1, 1, DType::bf16}, {128, 128, 1, 1, DType::f16}, {128, 64, 4, 2, DType::bf16}}) {
    LinearProblem problem = problem_of(410, false, dims.key, dims.value);
    problem.heads = dims.heads, problem.key_heads = dims.key_heads, problem.dtype = dims.dtype;
    problem.batch = dims.heads == 1 ? 1 : 2;
    expect_reference(mask, problem, decays());
    expect_reference(mask, problem, {"none", {}, {}});
  }
}

TEST(EmulatedHopperLinear, LengthsAroundTheEndsOfStepsEqualTheReference) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 130})
    expect_reference(masks::causal(length, length), problem_of(length, length % 2 == 0, 8, 8), check::mild_gates(),
                     length % 3 == 0);
}

TEST(EmulatedHopperLinear, MasksOfTheCorpusThatAreTreesEqualTheReference) {
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

TEST(EmulatedHopperLinear, HeadDimsGroupsAndSlicesEqualTheReference) {
  struct Dims {
    std::int64_t key, value, heads, key_heads;
    DType dtype;
  };
  const Mask mask = masks::shared_question({{{50, {40, 3}}, {20, {1, 10}}}}, 140);
  for (const Dims& dims : std::vector<Dims>{{64, 64, 2, 1, DType::f16},
                                            {128, 128, 1, 1, DType::bf16},
                                            {128, 64, 4, 2, DType::bf16},
                                            {8, 120, 3, 1, DType::f16},
                                            {128, 200, 1, 1, DType::bf16},
                                            {256, 136, 2, 2, DType::bf16},
                                            {136, 512, 1, 1, DType::f16}}) {
    LinearProblem problem = problem_of(140, dims.heads != 4, dims.key, dims.value);
    problem.heads = dims.heads, problem.key_heads = dims.key_heads, problem.dtype = dims.dtype;
    problem.batch = dims.heads == 2 ? 2 : 1;
    expect_reference(mask, problem, check::mild_gates(), dims.key != 64);
  }
}

/// Nodes that fork more than once, with states that come in and go out or none.
TEST(EmulatedHopperLinear, BranchesOfBranchesEqualTheReference) {
  const Mask mask = branches();
  for (const bool normalize : {false, true})
    expect_reference(mask, problem_of(410, normalize, 8, 16), check::long_memory(), normalize);
}

TEST(EmulatedHopperLinear, GatesOfEveryRegimeEqualTheReference) {
  for (const check::Regime& regime : check::gate_regimes())
    expect_reference(masks::causal_document({150, 13, 64, 1}, 230), problem_of(230, regime.normalize), regime.gates);
}

/// The outputs of a call, one after the other.
std::vector<const HostTensor*> outputs(const LinearTensors& t) {
  std::vector<const HostTensor*> all = {&t.o, &t.grad_q, &t.grad_k, &t.grad_v, &*t.grad_log_forget};
  if (t.grad_log_input) all.push_back(&*t.grad_log_input);
  return all;
}

/// For any number of blocks, and whenever copies and products happen.
void expect_bits_of_documents_alone(bool normalize, const Gates& gates) {
  const std::vector<std::int64_t> lengths = {70, 13, 64, 1};
  LinearProblem problem = problem_of(155, normalize);
  problem.heads = problem.key_heads = 2;
  const LinearPlan packed = linear_plan(masks::causal_document(lengths, 155), problem);
  const LinearTensors all(packed, 5, gates), again(packed, 5, gates);
  run(packed, all, Copies::early, 1);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    run(packed, again, Copies::late, 7, seed);
    for (std::size_t output = 0; output < outputs(all).size(); ++output)
      EXPECT_EQ(outputs(all)[output]->values(), outputs(again)[output]->values()) << "output " << output;
  }
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    problem.length = length;
    const LinearPlan single = linear_plan(masks::causal(length, length), problem);
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
  for (const HostTensor* output : outputs(all))
    for (std::int64_t i = begin * output->stride(1); i < output->size(); ++i) EXPECT_EQ(output->at(i), 0) << "padding";
}

TEST(EmulatedHopperLinear, ADocumentHasTheBitsThatItHasAlone) {
  expect_bits_of_documents_alone(false, decays());
  expect_bits_of_documents_alone(false, check::mild_gates());
  expect_bits_of_documents_alone(true, check::mild_gates());
}

TEST(EmulatedHopperLinear, NanStaysInItsTreeAndInItsBranch) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const Mask mask = masks::tree({-1, -1, 1, 1, -1}, {40, 50, 30, 20, 25}, 165).mask;
  for (const bool normalize : {false, true}) {
    const LinearPlan planned = linear_plan(mask, problem_of(165, normalize, 16, 24));
    const LinearTensors clean(planned, 9);
    run(planned, clean);
    LinearTensors dirty(planned, 9);
    const auto is_dirty = [](std::int64_t token) { return token < 40 || (token >= 90 && token < 120); };
    for (HostTensor* each : {&dirty.q, &dirty.k, &dirty.v, &*dirty.log_forget, &*dirty.log_input})
      for (std::int64_t i = 0, width = each->stride(1); i < each->size(); ++i)
        if (is_dirty(i / width)) each->set(i, i % 2 == 0 ? kNan : kInfinity);
    for (unsigned seed = 1; seed <= 6; ++seed) {
      run(planned, dirty, Copies::either, 3, seed);
      for (std::int64_t i = 0; i < clean.o.size(); ++i) {
        const std::int64_t token = i / clean.o.stride(1);
        if (is_dirty(token)) continue;
        ASSERT_EQ(clean.o.at(i), dirty.o.at(i)) << token;
      }
    }
  }
}

/// Where o is divided or not, with and without input gates.
TEST(EmulatedHopperLinear, GradientsOfOtherTreesKeepTheirBitsBesideNan) {
  for (const bool normalize : {false, true}) {
    const Gates gates = normalize ? check::mild_gates() : decays();
    const LinearPlan planned =
        linear_plan(masks::causal_document({40, 70, 25}, 140), problem_of(140, normalize, 16, 24));
    const LinearTensors clean(planned, 9, gates);
    run(planned, clean);
    LinearTensors dirty(planned, 9, gates);
    std::vector<HostTensor*> inputs = {&dirty.q, &dirty.k, &dirty.v, &dirty.grad_o, &*dirty.log_forget};
    if (normalize) inputs.push_back(&*dirty.log_input);
    for (HostTensor* each : inputs)
      for (std::int64_t i = 40 * each->stride(1); i < 110 * each->stride(1); ++i)
        each->set(i, std::numeric_limits<float>::quiet_NaN());
    for (unsigned seed = 1; seed <= 4; ++seed) {
      run(planned, dirty, seed % 2 == 0 ? Copies::late : Copies::early, 3, seed);
      for (std::size_t output = 0; output < outputs(clean).size(); ++output) {
        const HostTensor &one = *outputs(clean)[output], &other = *outputs(dirty)[output];
        for (std::int64_t i = 0; i < one.size(); ++i) {
          const std::int64_t token = i / one.stride(1);
          if (token >= 40 && token < 110) continue;
          ASSERT_EQ(one.at(i), other.at(i)) << "output " << output << ", token " << token;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashmask::cuda::sm90
