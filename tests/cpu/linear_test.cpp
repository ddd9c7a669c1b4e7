// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/linear_attention.h"
#include "kit/corpus.h"
#include "kit/linear_tensors.h"

namespace flashmask {
namespace {

using check::Gates;
using check::HostTensor;
using check::LinearTensors;
using check::RandomNumbers;
using test::same_bits;
using test::small_tests;

std::vector<std::string> running_kernels() {
  std::vector<std::string> names;
  for (const LinearKernelInfo& kernel : linear_kernels())
    if (kernel.device == DeviceType::cpu && why_not_linear(kernel.name).empty()) names.push_back(kernel.name);
  return names;
}

DType dtype_in(const std::string& kernel) {
  for (const DType dtype : {DType::f32, DType::bf16})
    if (kernel.find("." + to_string(dtype) + ".") != std::string::npos) return dtype;
  return DType::f16;
}

/// Shares of the largest number; the state of a call is float32 whatever the dtype.
double bound(DType dtype) { return dtype == DType::f32 ? 1e-5 : dtype == DType::bf16 ? 1e-2 : 2e-3; }

class LinearKernelTest : public testing::TestWithParam<std::string> {
 protected:
  LinearProblem problem(std::int64_t length, bool normalize) const {
    LinearProblem p;
    p.length = length;
    p.heads = p.key_heads = 1;
    p.key_dim = 20;
    p.value_dim = 36;
    p.dtype = dtype_in(GetParam());
    p.normalize = normalize;
    return p;
  }
  LinearPlan plan(const Mask& mask, const LinearProblem& p) const { return linear_plan(mask, p, GetParam()); }
  bool is_float32() const { return dtype_in(GetParam()) == DType::f32; }

  void run(const LinearPlan& planned, const LinearTensors& tensors, Executor* executor = &serial_executor()) const {
    Execution execution;
    execution.executor = executor;
    linear_forward(planned, tensors.forward(), execution);
    linear_backward(planned, tensors.backward(), execution);
  }

  void expect_reference(const Mask& mask, const LinearProblem& p, const Gates& gates = check::mild_gates(),
                        bool states = false, double slack = 1) const {
    const LinearPlan planned = plan(mask, p);
    const LinearTensors tensors(planned, 7, gates, states);
    run(planned, tensors);
    for (const check::LinearError& error : linear_errors(planned, mask, tensors))
      EXPECT_LT(error.worst, slack * bound(p.dtype)) << error.name << ", " << mask.description() << " of " << p.length
                                                     << ", gates " << gates.name << ", normalize " << p.normalize;
  }
};

std::string name_of(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

/// Rows of a tensor (batch 1, length, …), from one place on.
HostTensor rows_of(const HostTensor& all, std::int64_t begin, std::int64_t count) {
  const TensorView view = all.view();
  std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  shape[1] = count;
  HostTensor part(view.dtype, shape);
  for (std::int64_t i = 0; i < part.size(); ++i) part.set(i, all.at(begin * view.strides[1] + i));
  return part;
}

/// The inputs of some rows of a call.
void copy_rows(const LinearTensors& from, std::int64_t begin, LinearTensors& to) {
  const std::int64_t count = to.q.shape(1);
  to.q = rows_of(from.q, begin, count), to.k = rows_of(from.k, begin, count), to.v = rows_of(from.v, begin, count);
  to.grad_o = rows_of(from.grad_o, begin, count);
  to.log_forget = rows_of(*from.log_forget, begin, count);
  to.log_input = rows_of(*from.log_input, begin, count);
}

/// The outputs of a call, by name.
std::vector<std::pair<std::string, const HostTensor*>> outputs(const LinearTensors& t) {
  return {{"o", &t.o},
          {"grad_q", &t.grad_q},
          {"grad_k", &t.grad_k},
          {"grad_v", &t.grad_v},
          {"grad_log_forget", &*t.grad_log_forget},
          {"grad_log_input", &*t.grad_log_input}};
}

TEST_P(LinearKernelTest, MasksOfTheCorpusThatAreTreesEqualTheReference) {
  int served = 0;
  for (const corpus::Case& each : corpus::cases(1)) {
    if (each.size.rows != each.size.columns || each.size.rows > 200) continue;
    const Mask mask = each.mask();
    try {
      (void)nodes(mask);
    } catch (const Error& refusal) {
      try {
        (void)plan(mask, problem(each.size.rows, false));
        ADD_FAILURE() << each.name() << " is no tree and is taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(refusal.what()), std::string::npos) << error.what();
      }
      continue;
    }
    ++served;
    if (small_tests() && served % 4 != 0) continue;
    expect_reference(mask, problem(each.size.rows, served % 2 == 0), check::mild_gates(), served % 3 == 0);
  }
  EXPECT_GT(served, 20);
}

TEST_P(LinearKernelTest, EveryLengthEqualsTheReference) {
  for (std::int64_t length = 1; length <= 130; length += small_tests() ? 17 : length < 66 || length > 126 ? 1 : 7)
    expect_reference(masks::causal(length, length), problem(length, length % 2 == 0), check::mild_gates(),
                     length % 3 == 0);
}

TEST_P(LinearKernelTest, HeadDimsAndGroupsEqualTheReference) {
  struct Dims {
    std::int64_t key, value, heads, key_heads;
  };
  std::vector<Dims> all = {{8, 8, 2, 2}, {1, 1, 1, 1}, {33, 17, 3, 1}, {64, 64, 2, 1}, {100, 7, 1, 1}, {5, 130, 4, 2}};
  if (!small_tests()) all.insert(all.end(), {{128, 128, 1, 1}, {256, 512, 1, 1}});
  const Mask mask = masks::shared_question({{{50, {40, 3}}, {20, {1, 10}}}}, 140);
  for (const Dims& dims : all)
    for (const bool normalize : {false, true}) {
      LinearProblem p = problem(140, normalize);
      p.key_dim = dims.key, p.value_dim = dims.value, p.heads = dims.heads, p.key_heads = dims.key_heads;
      SCOPED_TRACE("key_dim " + std::to_string(dims.key) + ", value_dim " + std::to_string(dims.value));
      expect_reference(mask, p, check::mild_gates(), !normalize, 2);
    }
}

TEST_P(LinearKernelTest, LongNodesWithBranchesEqualTheReference) {
  if (small_tests()) return;
  const Mask mask = masks::tree({-1, 0, 0, 2, -1}, {1100, 70, 2100, 40, 130}, 3450).mask;
  for (const bool normalize : {false, true}) {
    LinearProblem p = problem(3450, normalize);
    p.key_dim = 9, p.value_dim = 12;
    expect_reference(mask, p, check::long_memory(), true, 2);
  }
}

float log_sigmoid(float x) { return -std::log1p(std::exp(-x)); }

/// Gates that break plain sums, sums over a sequence, or a recurrence without a scale; with the slack that float32
/// needs where o is badly conditioned.
struct Regime {
  Gates gates;
  bool normalize;
  double slack = 1;
};
std::vector<Regime> regimes() {
  const auto rare = [](float value) {
    return [value](RandomNumbers& random) { return random.below(50) == 0 ? value : log_sigmoid(4 + random.normal()); };
  };
  const auto normal = [](RandomNumbers& random) { return random.normal(); };
  const auto constant = [](float value) { return [value](RandomNumbers&) { return value; }; };
  const float infinity = std::numeric_limits<float>::infinity();
  return {
      {{"none", {}, {}}, false},
      {{"RetNet", constant(std::log(1 - 1.0F / 32)), {}}, false},
      {{"Mamba-2", [](RandomNumbers& r) { return -8e-3F * std::exp(2 * r.normal()); }, {}}, false},
      {{"sigmoid input", [](RandomNumbers& r) { return log_sigmoid(4 + r.normal()); },
        [](RandomNumbers& r) { return log_sigmoid(r.normal()); }},
       false},
      {{"xLSTM, bias -10", [](RandomNumbers& r) { return log_sigmoid(3 + r.normal()); },
        [](RandomNumbers& r) { return -10 + 2 * r.normal(); }},
       true},
      {{"resets of -1000", rare(-1000), normal}, true, 2},
      {{"resets of -1e6", rare(-1e6F), normal}, true, 2},
      {{"resets of -infinity", rare(-infinity), normal}, true, 2},
      {{"resets of -infinity, not normalized", rare(-infinity), normal}, false},
      {{"forget near 0", [](RandomNumbers& r) { return -20 - 10 * std::abs(r.normal()); }, normal}, true},
      {{"inputs to e^40", [](RandomNumbers& r) { return log_sigmoid(4 + r.normal()); },
        [](RandomNumbers& r) { return 10 * r.normal(); }},
       true,
       50},
      {{"inputs of 0", [](RandomNumbers& r) { return log_sigmoid(3 + r.normal()); },
        [infinity](RandomNumbers& r) { return r.below(3) == 0 ? -infinity : -1 + r.normal(); }},
       true},
  };
}

TEST_P(LinearKernelTest, GatesOfEveryRegimeEqualTheReference) {
  if (!is_float32()) return;
  for (const Regime& regime : regimes())
    expect_reference(masks::causal_document({300, 13, 64, 100, 1}, 490), problem(490, regime.normalize), regime.gates,
                     false, regime.slack);
}

TEST_P(LinearKernelTest, TinyInputGatesGiveZerosAndNoNan) {
  const Gates gates{"inputs near e^-200", [](RandomNumbers& r) { return log_sigmoid(4 + r.normal()); },
                    [](RandomNumbers& r) { return -200 + r.normal(); }};
  const LinearPlan planned = plan(masks::causal(150, 150), problem(150, true));
  const LinearTensors tensors(planned, 3, gates);
  run(planned, tensors);
  for (const auto& [name, output] : outputs(tensors)) EXPECT_TRUE(test::all_equal(*output, 0)) << name;
}

TEST_P(LinearKernelTest, ADocumentHasTheBitsThatItHasAloneForAnyThreads) {
  const std::vector<std::int64_t> lengths = {70, 13, 64, 200, 1, 30};
  std::int64_t total = 11;
  for (const std::int64_t length : lengths) total += length;
  for (const bool normalize : {false, true}) {
    const LinearPlan packed = plan(masks::causal_document(lengths, total), problem(total, normalize));
    const LinearTensors all(packed, 5);
    run(packed, all);
    const LinearTensors again(packed, 5);
    run(packed, again, &default_executor());
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      const LinearPlan single = plan(masks::causal(length, length), problem(length, normalize));
      LinearTensors alone(single, 1);
      copy_rows(all, begin, alone);
      run(single, alone);
      const auto whole = outputs(all), own = outputs(alone);
      for (std::size_t i = 0; i < own.size(); ++i)
        EXPECT_TRUE(same_bits(rows_of(*whole[i].second, begin, length), *own[i].second))
            << own[i].first << " of a document of " << length;
      begin += length;
    }
    const auto one = outputs(all), other = outputs(again);
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(same_bits(*one[i].second, *other[i].second)) << one[i].first << ", threads";
      EXPECT_TRUE(test::all_equal(rows_of(*one[i].second, begin, total - begin), 0)) << one[i].first << " of padding";
    }
  }
}

TEST_P(LinearKernelTest, NanStaysInItsTreeAndInItsBranch) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  // A document; a prompt with two answers; a document. NaN in the first document and in the first answer.
  const Mask mask = masks::tree({-1, -1, 1, 1, -1}, {40, 50, 30, 20, 25}, 165).mask;
  const auto spoilt = [](std::int64_t token) { return token < 40 || (token >= 90 && token < 120); };
  const auto in_a_spoilt_tree = [](std::int64_t token) { return token < 140; };
  for (const bool normalize : {false, true}) {
    const LinearPlan planned = plan(mask, problem(165, normalize));
    const LinearTensors clean(planned, 9);
    run(planned, clean);
    LinearTensors dirty(planned, 9);
    for (HostTensor* each : {&dirty.q, &dirty.k, &dirty.v, &dirty.grad_o, &*dirty.log_forget, &*dirty.log_input})
      for (std::int64_t i = 0, width = each->stride(1); i < each->size(); ++i)
        if (spoilt(i / width)) each->set(i, i % 2 == 0 ? kNan : kInfinity);
    run(planned, dirty);
    const auto expected = outputs(clean), found = outputs(dirty);
    for (std::size_t output = 0; output < expected.size(); ++output) {
      const HostTensor &a = *expected[output].second, &b = *found[output].second;
      // Gradients come back into a prompt from all of its answers; o does not.
      for (std::int64_t i = 0, width = a.stride(1); i < a.size(); ++i) {
        const std::int64_t token = i / width;
        if (output == 0 ? spoilt(token) : in_a_spoilt_tree(token)) continue;
        ASSERT_EQ(a.at(i), b.at(i)) << expected[output].first << " of token " << token;
      }
    }
  }
}

TEST_P(LinearKernelTest, AForkEqualsRepeatedPrompts) {
  const std::int64_t prompt = 90;
  const std::vector<std::int64_t> answers = {70, 1, 33};
  const Mask mask = masks::shared_question({{{prompt, answers}}}, 194);
  for (const bool normalize : {false, true}) {
    const LinearPlan forked = plan(mask, problem(194, normalize));
    const LinearTensors all(forked, 4);
    run(forked, all);
    std::vector<double> grad_k(static_cast<std::size_t>(prompt * 20));
    std::int64_t begin = prompt;
    for (std::size_t answer = 0; answer < answers.size(); ++answer) {
      const std::int64_t length = prompt + answers[answer];
      const LinearPlan single = plan(masks::causal(length, length), problem(length, normalize));
      LinearTensors own(single, 1);
      copy_rows(all, 0, own);  // the prompt, and rows that are overwritten
      for (auto [to, from] : {std::pair{&own.q, &all.q},
                              {&own.k, &all.k},
                              {&own.v, &all.v},
                              {&own.grad_o, &all.grad_o},
                              {&*own.log_forget, &*all.log_forget},
                              {&*own.log_input, &*all.log_input}})
        for (std::int64_t i = prompt * to->stride(1); i < to->size(); ++i)
          to->set(i, from->at(i + (begin - prompt) * to->stride(1)));
      if (answer > 0)  // the prompt's own gradient counts once
        for (std::int64_t i = 0; i < prompt * own.grad_o.stride(1); ++i) own.grad_o.set(i, 0);
      run(single, own);
      for (std::int64_t i = prompt * own.o.stride(1); i < own.o.size(); ++i)
        ASSERT_NEAR(own.o.at(i), all.o.at(i + (begin - prompt) * own.o.stride(1)), 5 * bound(own.o.view().dtype));
      for (std::size_t i = 0; i < grad_k.size(); ++i) grad_k[i] += own.grad_k.at(static_cast<std::int64_t>(i));
      begin += answers[answer];
    }
    double largest = 0;
    for (const double x : grad_k) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < grad_k.size(); ++i)
      ASSERT_NEAR(grad_k[i], all.grad_k.at(static_cast<std::int64_t>(i)), 3 * bound(all.o.view().dtype) * largest);
  }
}

TEST_P(LinearKernelTest, TwoCallsWithAStateBetweenEqualOne) {
  constexpr std::int64_t kLength = 150, kCut = 70;
  for (const bool normalize : {false, true}) {
    const LinearPlan whole = plan(masks::causal(kLength, kLength), problem(kLength, normalize));
    const LinearPlan front = plan(masks::causal(kCut, kCut), problem(kCut, normalize));
    const LinearPlan back = plan(masks::causal(kLength - kCut, kLength - kCut), problem(kLength - kCut, normalize));
    const LinearTensors all(whole, 2, check::mild_gates(), true);
    run(whole, all);
    LinearTensors first(front, 1, check::mild_gates(), true), second(back, 1, check::mild_gates(), true);
    copy_rows(all, 0, first);
    copy_rows(all, kCut, second);
    const auto copy = [](const check::HostStates& from, check::HostStates& to) {
      for (std::int64_t i = 0; i < to.state.size(); ++i) to.state.set(i, from.state.at(i));
      for (std::int64_t i = 0; to.normalizer && i < to.normalizer->size(); ++i)
        to.normalizer->set(i, from.normalizer->at(i));
      for (std::int64_t i = 0; to.log_scale && i < to.log_scale->size(); ++i)
        to.log_scale->set(i, from.log_scale->at(i));
    };
    copy(*all.initial, *first.initial);
    linear_forward(front, first.forward());
    copy(*first.final, *second.initial);
    copy(*all.grad_final, *second.grad_final);
    run(back, second);
    copy(*second.grad_initial, *first.grad_final);
    linear_backward(front, first.backward());
    const auto expected = outputs(all), one = outputs(first), two = outputs(second);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const HostTensor& x = *expected[i].second;
      double largest = 0, error = 0;
      for (std::int64_t j = 0; j < x.size(); ++j) {
        const double part =
            j < one[i].second->size() ? one[i].second->at(j) : two[i].second->at(j - one[i].second->size());
        largest = std::max<double>(largest, std::abs(x.at(j)));
        error = std::max(error, std::abs(part - x.at(j)));
      }
      EXPECT_LT(error, bound(all.o.view().dtype) * largest) << expected[i].first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearKernelTest, testing::ValuesIn(running_kernels()), name_of);

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(LinearRefusals, SayWhatWasGivenAndWhatWasExpected) {
  LinearProblem p;
  p.length = 10;
  p.key_dim = p.value_dim = 4;
  p.normalize = true;
  const LinearPlan planned = linear_plan(masks::causal(10, 10), p);
  LinearTensors tensors(planned, 1, check::mild_gates(), true);
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  LinearProblem on_gpu = p;
  on_gpu.device = {DeviceType::cuda, 0};
  expect(refusal([&] { (void)linear_plan(masks::causal(10, 10), on_gpu); }), "on cuda:0");
  expect(refusal([&] { (void)linear_plan(masks::sliding_window(10, 10, 3), p); }), "docs/linear.md");
  expect(refusal([&] { (void)linear_plan(masks::causal(10, 10), p, "avx9"); }), "does not begin with \"avx9\"");
  LinearForwardTensors t = tensors.forward();
  t.initial.normalizer = {};
  expect(refusal([&] { linear_forward(planned, t); }), "initial.normalizer: shape is absent; expected (1, 1, 4)");
  t = tensors.forward();
  t.log_forget.dtype = DType::bf16;
  expect(refusal([&] { linear_forward(planned, t); }), "log_forget: dtype is bf16; expected f32");
  t = tensors.forward();
  t.o = t.v;
  expect(refusal([&] { linear_forward(planned, t); }), "o: its memory overlaps that of v");
}

TEST(LinearRefusals, NameSizesThatNoMemoryHolds) {
  LinearProblem p;
  p.key_dim = p.value_dim = 4;
  p.batch = std::int64_t{1} << 40;
  const std::string batch = refusal([&] { (void)linear_plan(masks::causal(0, 0), p); });
  EXPECT_EQ(batch, "linear_attention: batch is 1099511627776; expected 0 … 2147483647");
  p.batch = 2147483647;
  EXPECT_EQ(linear_plan(masks::causal(0, 0), p).nodes(), Nodes{});
  p.length = 2;
  const std::string tokens = refusal([&] { (void)linear_plan(masks::causal(2, 2), p); });
  EXPECT_EQ(tokens, "linear_attention: batch x length is 4294967294; expected at most 2147483647 tokens");
}

TEST(LinearPlan, ThatIsEmptyIsRefusedWhereItIsUsed) {
  LinearProblem p;
  p.length = 10;
  p.key_dim = p.value_dim = 4;
  LinearPlan from = linear_plan(masks::causal(10, 10), p);
  const LinearPlan to = std::move(from), null(nullptr);
  const LinearTensors tensors(to, 1);
  for (const LinearPlan* empty : std::initializer_list<const LinearPlan*>{&from, &null}) {
    const std::vector<std::function<void()>> uses = {
        [&] { (void)empty->problem(); },
        [&] { (void)empty->nodes(); },
        [&] { (void)empty->roots(); },
        [&] { (void)empty->kernel(); },
        [&] { (void)linear_workspace_bytes(*empty, tensors.forward()); },
        [&] { linear_forward(*empty, tensors.forward()); },
        [&] { linear_backward(*empty, tensors.backward()); },
    };
    for (const std::function<void()>& use : uses)
      EXPECT_NE(refusal(use).find("the plan is empty, perhaps since it was moved from"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashmask
