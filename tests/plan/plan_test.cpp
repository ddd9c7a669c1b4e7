// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/kernels.h"
#include "kit/host_tensor.h"
#include "memory_sanitizers.h"
#include "plan/refusal.h"

namespace flashmask {
namespace {

Problem small_problem() {
  Problem p;
  p.batch = 2;
  p.query_length = 20;
  p.key_length = 30;
  p.query_heads = 4;
  p.kv_heads = 2;
  p.head_dim = 8;
  p.value_dim = 6;
  return p;
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" in: " << text;
}

TEST(Plan, NamesTheFieldOfAProblemThatIsOutOfRange) {
  struct Case {
    std::function<void(Problem&)> spoil;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {[](Problem& p) { p.batch = -1; }, {"batch", "-1"}},
      {[](Problem& p) { p.query_length = -2; }, {"query_length", "-2"}},
      {[](Problem& p) { p.key_length = std::int64_t{1} << 31; }, {"key_length", "2147483648"}},
      {[](Problem& p) { p.kv_heads = -1; }, {"kv_heads", "-1"}},
      {[](Problem& p) { p.kv_heads = 0; }, {"query_heads is 4", "expected 0, as kv_heads is 0"}},
      {[](Problem& p) { p.query_heads = 0; }, {"query_heads", "0", "multiple of kv_heads, which is 2"}},
      {[](Problem& p) { p.query_heads = 5; }, {"query_heads", "5", "multiple of kv_heads, which is 2"}},
      {[](Problem& p) { p.head_dim = 513; }, {"head_dim", "513", "512"}},
      {[](Problem& p) { p.value_dim = 0; }, {"value_dim", "0"}},
      {[](Problem& p) { p.scale = NAN; }, {"scale", "finite"}},
      {[](Problem& p) { p.dropout = 0.999999; }, {"dropout is 0.999999;", "0 to 0.99999", "1/65536"}},
  };
  for (const Case& c : cases) {
    Problem p = small_problem();
    c.spoil(p);
    expect_words(refusal([&] { plan(masks::full(20, 30), p); }), c.words);
  }
}

TEST(Plan, RefusesAMaskThatDoesNotFitTheProblem) {
  const Problem p = small_problem();
  expect_words(refusal([&] { plan(masks::full(30, 20), p); }), {"30 rows by 20 columns", "20 by 30"});
  const std::vector<Mask> three(3, masks::full(20, 30));
  expect_words(refusal([&] { plan(stack_heads(three), p); }), {"3 heads", "kv_heads (2)", "query_heads (4)"});
  expect_words(refusal([&] { plan(stack_batch(three), p); }), {"batch of 3", "1 or 2"});
}

TEST(Plan, SaysWhereABuildHasNoCuda) {
  const std::vector<KernelInfo> all = kernels();
  if (std::ranges::any_of(all, [](const KernelInfo& info) { return info.device == DeviceType::cuda; })) GTEST_SKIP();
  Problem p = small_problem();
  p.device = {DeviceType::cuda, 0};
  EXPECT_EQ(refusal([&] { plan(masks::full(20, 30), p); }, Status::unsupported),
            "plan: no kernel of this build runs on cuda:0: it has no CUDA; build it where nvcc, CUDA's compiler, is on "
            "the PATH");
}

TEST(Plan, TakesIntervalsWhereTheyFitBitsOtherwiseAndEitherWhenAsked) {
  const Problem p = small_problem();
  const Mask striped =
      from_predicate({1, 1, 20, 30}, [](auto, auto, auto row, auto column) { return column != 7 || row % 2 == 0; });
  const Mask causal = masks::causal(20, 30);
  EXPECT_EQ(plan(striped, p).mask().form(), MaskForm::bits);
  EXPECT_EQ(plan(causal, p).mask().form(), MaskForm::intervals);
  EXPECT_EQ(plan(causal, p, {.form = MaskForm::bits}).mask().form(), MaskForm::bits);
  EXPECT_EQ(plan(causal, p, {.form = MaskForm::bits}).kernel(Direction::forward).predicate, MaskForm::bits);
  expect_words(refusal([&] { plan(striped, p, {.form = MaskForm::intervals}); }, Status::unsupported), {"column 7"});
}

TEST(Plan, HoldsOneScheduleADirectionAtItsKernelsTile) {
  const Plan planned = plan(masks::full(20, 30), small_problem());
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    EXPECT_EQ(planned.kernel(direction).direction, direction);
    EXPECT_EQ(planned.schedule(direction).tile(), planned.kernel(direction).tile);
  }
}

/// Without what the environment of the whole run says.
class KernelChoice : public testing::Test {
 protected:
  KernelChoice() { unset(); }
  ~KernelChoice() override { unset(); }
  static void unset() {
    unsetenv("FLASHMASK_ISA");
    unsetenv("FLASHMASK_KERNEL");
  }
  static std::string arch(const PlanOptions& options = {}, Direction direction = Direction::forward) {
    return plan(masks::full(20, 30), small_problem(), options).kernel(direction).arch;
  }
};

TEST_F(KernelChoice, TakesTheBestLevelOfTheMachine) {
  std::string best = instruction_sets().front();
  if (best.ends_with("bf16")) best = instruction_sets()[1];  // has no float32 kernels
  EXPECT_EQ(arch(), best);
}

TEST_F(KernelChoice, FollowsTheEnvironment) {
  setenv("FLASHMASK_ISA", "scalar", 1);
  EXPECT_EQ(arch(), "scalar");
  setenv("FLASHMASK_ISA", "sse9", 1);
  expect_words(refusal([] { arch(); }), {"FLASHMASK_ISA", "sse9", "scalar"});
  unsetenv("FLASHMASK_ISA");
  setenv("FLASHMASK_KERNEL", "scalar", 1);
  EXPECT_EQ(arch({}, Direction::backward), "scalar");
}

TEST_F(KernelChoice, ANameWithADirectionConcernsThatDirectionOnly) {
  PlanOptions options;
  options.kernel = "scalar.forward.f32";
  EXPECT_EQ(arch(options), "scalar");
  EXPECT_EQ(arch(options, Direction::backward), arch({}, Direction::backward));
}

TEST_F(KernelChoice, KernelsOfACPUAreDeterministicAlready) {
  for (const Direction direction : {Direction::forward, Direction::backward})
    EXPECT_EQ(arch({.deterministic = true}, direction), arch({}, direction));
}

TEST_F(KernelChoice, SaysWhyNoKernelServes) {
  PlanOptions options;
  options.kernel = "scalar.forward.bf16";
  expect_words(refusal([&] { arch(options); }, Status::unsupported),
               {"scalar.forward.bf16.dany.m64n64.intervals", "it computes bf16, not f32"});
  options.kernel = "nonsense";
  expect_words(refusal([&] { arch(options); }, Status::unsupported), {"nonsense", "flashmask info"});
  Problem on_gpu = small_problem();
  on_gpu.device = {DeviceType::cuda, 1};
  expect_words(refusal([&] { plan(masks::full(20, 30), on_gpu); }, Status::unsupported), {"cuda:1"});
}

TEST_F(KernelChoice, EveryNameFollowsTheGrammar) {
  for (const KernelInfo& info : kernels()) {
    const std::string dot = "\\.";
    const std::regex grammar(info.arch + dot + to_string(info.direction) + dot + to_string(info.dtype) + dot +
                             "d(any|[0-9]+(v[0-9]+)?)" + dot + "m" + std::to_string(info.tile.rows) + "n" +
                             std::to_string(info.tile.columns) + "([+]m[0-9]+n[0-9]+)?" + dot +
                             to_string(info.predicate) + "(" + dot + "deterministic)?");
    EXPECT_TRUE(std::regex_match(info.name, grammar)) << info.name;
  }
}

TEST_F(KernelChoice, MeasuresAPeakThatNoKernelCanPass) {
  for (const KernelInfo& info : kernels()) {
    if (!why_not(info).empty()) continue;
    EXPECT_GT(measure_peak(info), 1e8) << info.name;
  }
}

struct TensorCase {
  std::string name;
  std::function<void(BackwardTensors&)> spoil;
  std::vector<std::string> words;
};

TEST(Tensors, NameWhatIsWrongWithThem) {
  const Problem p = small_problem();
  const Plan planned = plan(masks::full(20, 30), p);
  const check::AttentionTensors tensors(p, 1);
  forward(planned, tensors.forward());
  const std::vector<TensorCase> cases = {
      {"rank", [](BackwardTensors& t) { t.q.rank = 3; }, {"q", "(2, 20, 4)", "(2, 20, 4, 8)"}},
      {"length", [](BackwardTensors& t) { t.k.shape[1] = 31; }, {"k", "(2, 31, 2, 8)", "(2, 30, 2, 8)"}},
      {"dtype", [](BackwardTensors& t) { t.v.dtype = DType::f16; }, {"v", "f16", "f32"}},
      {"device", [](BackwardTensors& t) { t.o.device.type = DeviceType::cuda; }, {"o", "cuda:0", "cpu"}},
      {"stride", [](BackwardTensors& t) { t.grad_o.strides[3] = 2; }, {"grad_o", "last stride is 2", "expected 1"}},
      {"null", [](BackwardTensors& t) { t.grad_q.data = nullptr; }, {"grad_q", "null"}},
      {"absent", [](BackwardTensors& t) { t.lse = {}; }, {"lse", "absent", "(2, 4, 20)"}},
      {"lse dtype", [](BackwardTensors& t) { t.grad_lse.dtype = DType::bf16; }, {"grad_lse", "bf16", "f32"}},
      {"alignment",
       [](BackwardTensors& t) { t.grad_k.data = static_cast<std::byte*>(t.grad_k.data) + 1; },
       {"grad_k", "aligned"}},
      {"value dim", [](BackwardTensors& t) { t.grad_v.shape[3] = 8; }, {"grad_v", "(2, 30, 2, 6)"}},
  };
  for (const TensorCase& c : cases) {
    SCOPED_TRACE(c.name);
    BackwardTensors spoilt = tensors.backward();
    c.spoil(spoilt);
    expect_words(refusal([&] { backward(planned, spoilt); }), c.words);
  }
}

TEST(Tensors, OfARankBeyondTheirShapeAreRefused) {
  const Plan planned = plan(masks::full(20, 30), small_problem());
  const check::AttentionTensors own(small_problem(), 1);
  for (const int rank : {99, 5, -1}) {
    ForwardTensors tensors = own.forward();
    tensors.k.rank = rank;
    expect_words(refusal([&] { forward(planned, tensors); }),
                 {"forward: k: rank is " + std::to_string(rank), "expected 4", "(2, 30, 2, 8)"});
  }
}

TEST(Tensors, PositionsThatFloat32DoesNotHoldAreRefused) {
  Problem p = small_problem();
  p.change = scores::alibi();
  const Plan planned = plan(masks::full(20, 30), p);
  check::AttentionTensors tensors(p, 1);
  for (const float position : {16777215.0F, -16777215.0F}) {
    tensors.key_positions->set(59, position);
    forward(planned, tensors.forward());
    backward(planned, tensors.backward());
  }
  for (const float position : {16777216.0F, -1e9F, NAN}) {
    tensors.key_positions->set(59, position);
    const std::vector<std::string> words = {"key_positions: it holds", "between -2^24 and 2^24", "subtract"};
    expect_words(refusal([&] { forward(planned, tensors.forward()); }), words);
    expect_words(refusal([&] { backward(planned, tensors.backward()); }), words);
  }

  p.query_length = (std::int64_t{1} << 24) + 1;
  p.key_length = p.batch = 1;
  p.query_heads = p.kv_heads = 0;
  const check::AttentionTensors long_ones(p, 1);
  expect_words(refusal([&] { forward(plan(masks::full(p.query_length, 1), p), long_ones.forward()); }),
               {"query_positions: they are absent", "16777217 tokens"});
}

TEST(Tensors, WithoutHeadsAreLegal) {
  Problem p = small_problem();
  p.query_heads = p.kv_heads = 0;
  const Plan planned = plan(masks::full(20, 30), p);
  const check::AttentionTensors tensors(p, 1);
  forward(planned, tensors.forward());
  backward(planned, tensors.backward());
  EXPECT_EQ(tensors.o.size(), 0);
}

TEST(Plan, ThatWasMovedFromIsRefusedWhereItIsUsed) {
  Plan from = plan(masks::full(20, 30), small_problem());
  const Plan to = std::move(from);
  const check::AttentionTensors tensors(small_problem(), 1);
  forward(to, tensors.forward());
  const std::vector<std::function<void()>> uses = {
      [&] { from.mask(); },
      [&] { from.kernel(Direction::forward); },
      [&] { from.schedule(Direction::backward); },
      [&] { from.workspace_bytes(Direction::backward, 1); },
      [&] { forward(from, tensors.forward()); },
      [&] { backward(from, tensors.backward()); },
  };
  for (const std::function<void()>& use : uses) expect_words(refusal(use), {"the plan was moved from"});
}

TEST(Tensors, TheGradientOfLseMayBeAbsent) {
  const Problem p = small_problem();
  const Plan planned = plan(masks::full(20, 30), p);
  check::AttentionTensors without(p, 1), zero(p, 1);
  for (std::int64_t i = 0; i < zero.grad_lse.size(); ++i) zero.grad_lse.set(i, 0.0f);
  for (check::AttentionTensors* tensors : {&without, &zero}) {
    forward(planned, tensors->forward());
    BackwardTensors b = tensors->backward();
    if (tensors == &without) b.grad_lse = {};
    backward(planned, b);
  }
  EXPECT_EQ(without.grad_q.values(), zero.grad_q.values());
  EXPECT_EQ(without.grad_k.values(), zero.grad_k.values());
}

TEST(Workspace, OfTheStatedSizeSufficesAndASmallerOneIsRefused) {
  const Problem p = small_problem();
  const Plan planned = plan(masks::full(20, 30), p);
  const check::AttentionTensors own(p, 1), given(p, 1);
  forward(planned, own.forward());
  const std::size_t bytes = planned.workspace_bytes(Direction::forward, 1);
  // A byte off the cache line: the library aligns what it is given.
  std::vector<std::byte> memory(bytes + 1);
  Execution execution;
  execution.executor = &serial_executor();
  execution.workspace = memory.data() + 1;
  execution.workspace_bytes = bytes;
  forward(planned, given.forward(), execution);
  EXPECT_EQ(own.o.values(), given.o.values());
  execution.workspace_bytes = bytes - 1;
  expect_words(refusal([&] { forward(planned, given.forward(), execution); }),
               {std::to_string(bytes - 1), std::to_string(bytes), "workspace_bytes()"});
}

TEST(Workspace, OfTheForwardDoesNotGrowWithTheSequence) {
  Problem p = small_problem();
  const std::size_t small = plan(masks::full(20, 30), p).workspace_bytes(Direction::forward, 2);
  p.query_length = p.key_length = 100000;
  EXPECT_EQ(plan(masks::full(100000, 100000), p).workspace_bytes(Direction::forward, 2), small);
}

TEST(Workspace, IsForNoMoreWorkersThanThereAreTasks) {
  const Plan planned = plan(masks::full(20, 30), small_problem());
  // One row tile for each of 2 x 4 heads, one column tile for each of 2 x 2.
  EXPECT_EQ(planned.workspace_bytes(Direction::forward, 1000000), planned.workspace_bytes(Direction::forward, 8));
  EXPECT_EQ(planned.workspace_bytes(Direction::backward, 1000000), planned.workspace_bytes(Direction::backward, 4));
}

/// An executor that says it has a million workers and is one.
class Boaster final : public Executor {
 public:
  int workers() const override { return 1000000; }
  void run(int count, const std::function<void(int)>& body) override { serial_executor().run(count, body); }
};

TEST(Workspace, OfAnExecutorThatBoastsIsThatOfItsTasks) {
  const Plan planned = plan(masks::full(20, 30), small_problem());
  const check::AttentionTensors own(small_problem(), 1), boasted(small_problem(), 1);
  Boaster boaster;
  Execution execution;
  execution.executor = &boaster;
  std::vector<std::byte> memory(planned.workspace_bytes(Direction::backward, 8));
  execution.workspace = memory.data();
  execution.workspace_bytes = memory.size();
  forward(planned, own.forward());
  backward(planned, own.backward());
  forward(planned, boasted.forward(), execution);
  backward(planned, boasted.backward(), execution);
  EXPECT_EQ(own.o.values(), boasted.o.values());
  EXPECT_EQ(own.grad_k.values(), boasted.grad_k.values());
}

TEST(Workspace, ForWhichThereIsNoMemoryIsAnErrorWithItsBytes) {
  if (kSanitizerAllocates) GTEST_SKIP() << "a sanitizer ends a program that asks for so much";
  Problem p = small_problem();
  p.batch = std::int64_t{1} << 34;  // in tensors that are addresses alone: memory for the sums is asked for first
  const Plan planned = plan(masks::full(20, 30), p);
  std::uintptr_t next = std::uintptr_t{1} << 56;
  const auto somewhere = [&](std::initializer_list<std::int64_t> shape) {
    next += std::uintptr_t{1} << 52;
    return contiguous(reinterpret_cast<void*>(next), DType::f32, shape);
  };
  const auto q = [&] { return somewhere({p.batch, 20, 4, 8}); };
  const auto o = [&] { return somewhere({p.batch, 20, 4, 6}); };
  const BackwardTensors tensors{.q = q(),
                                .k = somewhere({p.batch, 30, 2, 8}),
                                .v = somewhere({p.batch, 30, 2, 6}),
                                .o = o(),
                                .lse = somewhere({p.batch, 4, 20}),
                                .grad_o = o(),
                                .grad_q = q(),
                                .grad_k = somewhere({p.batch, 30, 2, 8}),
                                .grad_v = somewhere({p.batch, 30, 2, 6})};
  Execution execution;
  execution.executor = &serial_executor();
  const std::size_t bytes = planned.workspace_bytes(Direction::backward, 1);
  ASSERT_GT(bytes, std::size_t{1} << 47) << "more than there are addresses";
  expect_words(refusal([&] { backward(planned, tensors, execution); }, Status::out_of_memory),
               {"backward", std::to_string(bytes) + " bytes", "1 workers"});
}

TEST(TensorView, OfContiguousMemoryHasRowMajorStrides) {
  float memory[24];
  const TensorView view = contiguous(memory, DType::f32, {1, 2, 3, 4});
  EXPECT_EQ(view.strides, (std::array<std::int64_t, 4>{24, 12, 4, 1}));
  EXPECT_THROW(contiguous(memory, DType::f32, {}), Error);
  EXPECT_THROW(contiguous(memory, DType::f32, {1, 1, 1, 1, 1}), Error);
}

}  // namespace
}  // namespace flashmask
