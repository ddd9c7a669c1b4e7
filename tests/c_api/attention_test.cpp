// SPDX-License-Identifier: Apache-2.0
#include "flashmask/attention.h"

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "c_api/handles.h"
#include "flashmask/builders.h"

namespace flashmask::c_api {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kRows = 70;
constexpr std::int64_t kColumns = 90;
constexpr std::int64_t kQueryHeads = 4;
constexpr std::int64_t kKeyHeads = 2;
constexpr std::int64_t kHeadDim = 24;
constexpr std::int64_t kValueDim = 16;

const flashmask_problem kProblem = [] {
  flashmask_problem problem = make_problem(kBatch, kRows, kColumns, kQueryHeads, kKeyHeads, kHeadDim, kValueDim);
  problem.scale = 0.25F;
  return problem;
}();

/// The same problem for the C++ API, written a second time on purpose.
Problem cpp_problem() {
  Problem problem;
  problem.batch = kBatch;
  problem.query_length = kRows;
  problem.key_length = kColumns;
  problem.query_heads = kQueryHeads;
  problem.kv_heads = kKeyHeads;
  problem.head_dim = kHeadDim;
  problem.value_dim = kValueDim;
  problem.scale = 0.25F;
  return problem;
}

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  std::int64_t stride(std::size_t axis) const {
    std::int64_t stride = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) stride *= shape[i];
    return stride;
  }
  flashmask_tensor tensor() {
    flashmask_tensor tensor{};
    tensor.data = values.data();
    tensor.rank = static_cast<std::int32_t>(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) {
      tensor.shape[i] = shape[i];
      tensor.strides[i] = stride(i);
    }
    return tensor;
  }
  TensorView view() {
    TensorView view;
    view.data = values.data();
    view.rank = static_cast<int>(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) {
      view.shape[i] = shape[i];
      view.strides[i] = stride(i);
    }
    return view;
  }
};

Array poisoned(std::vector<std::int64_t> shape) {
  std::size_t size = 1;
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  return {std::move(shape), std::vector<float>(size, std::nanf(""))};
}

Array random(std::vector<std::int64_t> shape, unsigned seed) {
  Array array = poisoned(std::move(shape));
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  for (float& value : array.values) value = number(engine);
  return array;
}

struct Arrays {
  Array q = random({kBatch, kRows, kQueryHeads, kHeadDim}, 1);
  Array k = random({kBatch, kColumns, kKeyHeads, kHeadDim}, 2);
  Array v = random({kBatch, kColumns, kKeyHeads, kValueDim}, 3);
  Array o = poisoned({kBatch, kRows, kQueryHeads, kValueDim});
  Array lse = poisoned({kBatch, kQueryHeads, kRows});
  Array grad_o = random({kBatch, kRows, kQueryHeads, kValueDim}, 4);
  Array grad_lse = random({kBatch, kQueryHeads, kRows}, 5);
  Array grad_q = poisoned(q.shape);
  Array grad_k = poisoned(k.shape);
  Array grad_v = poisoned(v.shape);

  flashmask_forward_tensors forward() {
    flashmask_forward_tensors tensors = FLASHMASK_INIT(flashmask_forward_tensors);
    tensors.q = q.tensor();
    tensors.k = k.tensor();
    tensors.v = v.tensor();
    tensors.o = o.tensor();
    tensors.lse = lse.tensor();
    return tensors;
  }
  flashmask_backward_tensors backward(bool with_grad_lse) {
    flashmask_backward_tensors tensors = FLASHMASK_INIT(flashmask_backward_tensors);
    tensors.q = q.tensor();
    tensors.k = k.tensor();
    tensors.v = v.tensor();
    tensors.o = o.tensor();
    tensors.lse = lse.tensor();
    tensors.grad_o = grad_o.tensor();
    if (with_grad_lse) tensors.grad_lse = grad_lse.tensor();
    tensors.grad_q = grad_q.tensor();
    tensors.grad_k = grad_k.tensor();
    tensors.grad_v = grad_v.tensor();
    return tensors;
  }
};

void expect_bitwise_equal(const Array& a, const Array& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  EXPECT_EQ(std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)), 0);
}

void expect_bitwise_equal(const Arrays& a, const Arrays& b) {
  expect_bitwise_equal(a.o, b.o);
  expect_bitwise_equal(a.lse, b.lse);
  expect_bitwise_equal(a.grad_q, b.grad_q);
  expect_bitwise_equal(a.grad_k, b.grad_k);
  expect_bitwise_equal(a.grad_v, b.grad_v);
}

Arrays attend_in_cpp(bool with_grad_lse) {
  Arrays a;
  const Plan ready = plan(masks::sliding_window(kRows, kColumns, 20), cpp_problem());
  forward(ready, {a.q.view(), a.k.view(), a.v.view(), a.o.view(), a.lse.view()});
  BackwardTensors tensors;
  tensors.q = a.q.view();
  tensors.k = a.k.view();
  tensors.v = a.v.view();
  tensors.o = a.o.view();
  tensors.lse = a.lse.view();
  tensors.grad_o = a.grad_o.view();
  if (with_grad_lse) tensors.grad_lse = a.grad_lse.view();
  tensors.grad_q = a.grad_q.view();
  tensors.grad_k = a.grad_k.view();
  tensors.grad_v = a.grad_v.view();
  backward(ready, tensors);
  return a;
}

PlanHandle make_plan(const flashmask_plan_options* options = nullptr) {
  const MaskHandle mask = make(flashmask_mask_sliding_window, kRows, kColumns, 20);
  flashmask_plan* plan = nullptr;
  EXPECT_EQ(flashmask_plan_create(mask.get(), &kProblem, options, &plan), FLASHMASK_OK) << flashmask_last_error();
  return PlanHandle(plan);
}

Arrays attend_in_c(const PlanHandle& plan, bool with_grad_lse, const flashmask_execution* execution = nullptr) {
  Arrays arrays;
  const flashmask_forward_tensors forward = arrays.forward();
  EXPECT_EQ(flashmask_forward(plan.get(), &forward, execution), FLASHMASK_OK) << flashmask_last_error();
  const flashmask_backward_tensors backward = arrays.backward(with_grad_lse);
  EXPECT_EQ(flashmask_backward(plan.get(), &backward, execution), FLASHMASK_OK) << flashmask_last_error();
  return arrays;
}

TEST(Attention, IsBitwiseThatOfTheLibrary) {
  expect_bitwise_equal(attend_in_c(make_plan(), false), attend_in_cpp(false));
  expect_bitwise_equal(attend_in_c(make_plan(), true), attend_in_cpp(true));
}

TEST(Attention, HasTheTangentsOfTheLibrary) {
  const PlanHandle plan = make_plan();
  Arrays a = attend_in_c(plan, false);
  Array of_q = random(a.q.shape, 6), of_v = random(a.v.shape, 7);
  Array of_o = poisoned(a.o.shape), of_lse = poisoned(a.lse.shape), cpp_o = of_o, cpp_lse = of_lse;
  flashmask_tangent_tensors tensors = FLASHMASK_INIT(flashmask_tangent_tensors);
  tensors.q = a.q.tensor();
  tensors.k = a.k.tensor();
  tensors.v = a.v.tensor();
  tensors.o = a.o.tensor();
  tensors.lse = a.lse.tensor();
  tensors.tangent_q = of_q.tensor();
  tensors.tangent_v = of_v.tensor();
  tensors.tangent_o = of_o.tensor();
  tensors.tangent_lse = of_lse.tensor();
  std::size_t bytes = 0;
  ASSERT_EQ(flashmask_plan_tangents_workspace(plan.get(), 1, &bytes), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_GT(bytes, 0U);
  ASSERT_EQ(flashmask_forward_tangents(plan.get(), &tensors, nullptr), FLASHMASK_OK) << flashmask_last_error();
  forward_tangents(flashmask::plan(masks::sliding_window(kRows, kColumns, 20), cpp_problem()),
                   {.q = a.q.view(),
                    .k = a.k.view(),
                    .v = a.v.view(),
                    .o = a.o.view(),
                    .lse = a.lse.view(),
                    .tangent_q = of_q.view(),
                    .tangent_v = of_v.view(),
                    .tangent_o = cpp_o.view(),
                    .tangent_lse = cpp_lse.view()});
  expect_bitwise_equal(of_o, cpp_o);
  expect_bitwise_equal(of_lse, cpp_lse);
  tensors.struct_size = 8;
  EXPECT_EQ(flashmask_forward_tangents(plan.get(), &tensors, nullptr), FLASHMASK_INVALID_ARGUMENT);
}

/// Four keys that each of 1,030 rows sees alike: the gradient of v is 257.5, and bfloat16 numbers there are even.
TEST(Attention, GivesGradientsOfKeysInFloat32) {
  constexpr std::int64_t rows = 1030, keys = 4, dim = 8;
  std::vector<std::uint16_t> zeros(rows * dim), ones(rows * dim, 0x3F80), o(rows * dim), grad_q(rows * dim);
  std::vector<float> lse(rows), grad_k(keys * dim, std::nanf("")), grad_v(keys * dim, std::nanf(""));
  const auto tensor = [](void* data, std::int64_t tokens, std::int32_t dtype) {
    return flashmask_tensor{data, dtype, 0, 0, 4, {1, tokens, 1, dim}, {tokens * dim, dim, dim, 1}};
  };
  flashmask_problem problem = make_problem(1, rows, keys, 1, 1, dim, dim);
  problem.dtype = FLASHMASK_BF16;
  const MaskHandle mask = make(flashmask_mask_full, rows, keys);
  flashmask_plan* made = nullptr;
  ASSERT_EQ(flashmask_plan_create(mask.get(), &problem, nullptr, &made), FLASHMASK_OK) << flashmask_last_error();
  const PlanHandle plan(made);
  flashmask_forward_tensors forward = FLASHMASK_INIT(flashmask_forward_tensors);
  forward.q = tensor(zeros.data(), rows, FLASHMASK_BF16);
  forward.k = forward.v = tensor(zeros.data(), keys, FLASHMASK_BF16);
  forward.o = tensor(o.data(), rows, FLASHMASK_BF16);
  forward.lse = {lse.data(), FLASHMASK_F32, 0, 0, 3, {1, 1, rows}, {rows, rows, 1}};
  ASSERT_EQ(flashmask_forward(plan.get(), &forward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  flashmask_backward_tensors backward = FLASHMASK_INIT(flashmask_backward_tensors);
  backward.q = forward.q;
  backward.k = backward.v = forward.k;
  backward.o = forward.o;
  backward.lse = forward.lse;
  backward.grad_o = tensor(ones.data(), rows, FLASHMASK_BF16);
  backward.grad_q = tensor(grad_q.data(), rows, FLASHMASK_BF16);
  backward.grad_k = tensor(grad_k.data(), keys, FLASHMASK_F32);
  backward.grad_v = tensor(grad_v.data(), keys, FLASHMASK_F32);
  ASSERT_EQ(flashmask_backward(plan.get(), &backward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(grad_k, std::vector<float>(keys * dim, 0));
  EXPECT_EQ(grad_v, std::vector<float>(keys * dim, 257.5F));
  backward.grad_k.dtype = FLASHMASK_BF16;
  expect_refused(flashmask_backward(plan.get(), &backward, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "grad_v: dtype is f32; expected bf16");
}

TEST(Attention, UsesTheCallersWorkspace) {
  const PlanHandle plan = make_plan();
  const int workers = default_executor().workers();
  std::size_t forward_bytes = 0;
  std::size_t backward_bytes = 0;
  ASSERT_EQ(flashmask_plan_workspace(plan.get(), FLASHMASK_FORWARD, workers, &forward_bytes), FLASHMASK_OK);
  ASSERT_EQ(flashmask_plan_workspace(plan.get(), FLASHMASK_BACKWARD, workers, &backward_bytes), FLASHMASK_OK);
  std::vector<std::byte> workspace(std::max(forward_bytes, backward_bytes));
  flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
  execution.workspace = workspace.data();
  execution.workspace_bytes = workspace.size();
  expect_bitwise_equal(attend_in_c(plan, true, &execution), attend_in_cpp(true));
}

TEST(Attention, VisitsEveryTileWhenAsked) {
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.visit = FLASHMASK_VISIT_ALL;
  expect_bitwise_equal(attend_in_c(make_plan(&options), true), attend_in_cpp(true));
}

/// Counts the bodies it runs, all on one thread or each on its own.
struct Runner {
  int workers = 1;
  int bodies = 0;
  int dropped = 0;

  flashmask_executor executor(void (*run)(void*, int, void (*)(void*, int), void*)) {
    return {sizeof(flashmask_executor), this, [](void* runner) { return static_cast<Runner*>(runner)->workers; }, run};
  }
};

void run_in_order(void* context, int count, void (*body)(void*, int), void* body_context) {
  auto& runner = *static_cast<Runner*>(context);
  runner.bodies += count;
  for (int i = 0; i < count - runner.dropped; ++i) body(body_context, i);
}

void run_on_threads(void* context, int count, void (*body)(void*, int), void* body_context) {
  static_cast<Runner*>(context)->bodies += count;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads.emplace_back(body, body_context, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Attention, RunsOnTheCallersThreads) {
  Runner in_order{.workers = 3};
  Runner threads{.workers = 4};
  for (const auto& executor : {in_order.executor(run_in_order), threads.executor(run_on_threads)}) {
    flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
    options.executor = &executor;
    flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
    execution.executor = &executor;
    expect_bitwise_equal(attend_in_c(make_plan(&options), true, &execution), attend_in_cpp(true));
  }
  EXPECT_GT(in_order.bodies, 0);
  EXPECT_GT(threads.bodies, 0);
}

TEST(Attention, RefusesAnExecutorThatBreaksItsContract) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  const flashmask_forward_tensors tensors = arrays.forward();
  const auto run_with = [&](const flashmask_executor& executor) {
    flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
    execution.executor = &executor;
    return flashmask_forward(plan.get(), &tensors, &execution);
  };
  Runner idle{.workers = 0};
  expect_refused(run_with(idle.executor(run_in_order)), FLASHMASK_INVALID_ARGUMENT, "executor.workers returned 0");
  Runner forgetful{.workers = 2, .dropped = 1};
  expect_refused(run_with(forgetful.executor(run_in_order)), FLASHMASK_INVALID_ARGUMENT, "executor.run returned after");
  expect_refused(run_with(FLASHMASK_INIT(flashmask_executor)), FLASHMASK_INVALID_ARGUMENT, "executor.run is NULL");
}

TEST(Attention, RefusesAStreamOnTheCpu) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  int stream = 0;
  const flashmask_forward_tensors tensors = arrays.forward();
  flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
  execution.stream = &stream;
  expect_refused(flashmask_forward(plan.get(), &tensors, &execution), FLASHMASK_INVALID_ARGUMENT, "execution.stream");
}

TEST(Attention, RefusesMissingTensors) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  flashmask_forward_tensors forward = arrays.forward();
  forward.k = {};
  expect_refused(flashmask_forward(plan.get(), &forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "k");
  flashmask_backward_tensors backward = arrays.backward(false);
  backward.grad_v = {};
  expect_refused(flashmask_backward(plan.get(), &backward, nullptr), FLASHMASK_INVALID_ARGUMENT, "grad_v");
}

TEST(Attention, RefusesOutputsThatOverlap) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  flashmask_forward_tensors forward = arrays.forward();
  forward.lse.data = forward.o.data;
  expect_refused(flashmask_forward(plan.get(), &forward, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "forward: lse: its memory overlaps that of o; expected memory of its own");
  flashmask_backward_tensors backward = arrays.backward(false);
  backward.grad_q = backward.q;
  expect_refused(flashmask_backward(plan.get(), &backward, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "backward: grad_q: its memory overlaps that of q; expected memory of its own");
  backward = arrays.backward(false);
  backward.grad_v.strides[1] = 0;
  expect_refused(flashmask_backward(plan.get(), &backward, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "backward: grad_v: strides are (2880, 0, 16, 1) of shape (2, 90, 2, 16)");
}

TEST(Attention, RefusesTensorsOfUnknownRankOrDtype) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  flashmask_forward_tensors tensors = arrays.forward();
  tensors.v.rank = 5;
  expect_refused(flashmask_forward(plan.get(), &tensors, nullptr), FLASHMASK_INVALID_ARGUMENT, "v has rank 5");
  tensors = arrays.forward();
  tensors.o.dtype = 9;
  expect_refused(flashmask_forward(plan.get(), &tensors, nullptr), FLASHMASK_INVALID_ARGUMENT, "o.dtype is 9");
  tensors = arrays.forward();
  tensors.lse.device_type = -1;
  expect_refused(flashmask_forward(plan.get(), &tensors, nullptr), FLASHMASK_INVALID_ARGUMENT, "lse.device_type is -1");
}

TEST(Attention, RefusesNull) {
  const PlanHandle plan = make_plan();
  Arrays arrays;
  const flashmask_forward_tensors forward = arrays.forward();
  const flashmask_backward_tensors backward = arrays.backward(false);
  expect_refused(flashmask_forward(nullptr, &forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "plan is NULL");
  expect_refused(flashmask_forward(plan.get(), nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT, "tensors is NULL");
  expect_refused(flashmask_backward(nullptr, &backward, nullptr), FLASHMASK_INVALID_ARGUMENT, "plan is NULL");
  expect_refused(flashmask_backward(plan.get(), nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT, "tensors is NULL");
}

TEST(PlanHandle, NamesTheKernelsOfTheLibrary) {
  const PlanHandle given = make_plan();
  const Plan expected = plan(masks::sliding_window(kRows, kColumns, 20), cpp_problem());
  const char* name = nullptr;
  ASSERT_EQ(flashmask_plan_kernel(given.get(), FLASHMASK_FORWARD, &name), FLASHMASK_OK);
  EXPECT_EQ(name, expected.kernel(Direction::forward).name);
  ASSERT_EQ(flashmask_plan_kernel(given.get(), FLASHMASK_BACKWARD, &name), FLASHMASK_OK);
  EXPECT_EQ(name, expected.kernel(Direction::backward).name);
}

TEST(PlanHandle, AsksForTheKernelByName) {
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.kernel = "scalar";
  const PlanHandle plan = make_plan(&options);
  const char* name = nullptr;
  ASSERT_EQ(flashmask_plan_kernel(plan.get(), FLASHMASK_FORWARD, &name), FLASHMASK_OK);
  EXPECT_EQ(std::string(name).rfind("scalar.forward.f32.", 0), 0U) << name;
}

TEST(PlanHandle, SaysTheWorkspaceOfTheLibrary) {
  const PlanHandle given = make_plan();
  const Plan expected = plan(masks::sliding_window(kRows, kColumns, 20), cpp_problem());
  std::size_t bytes = 0;
  ASSERT_EQ(flashmask_plan_workspace(given.get(), FLASHMASK_BACKWARD, 3, &bytes), FLASHMASK_OK);
  EXPECT_EQ(bytes, expected.workspace_bytes(Direction::backward, 3));
}

TEST(PlanHandle, RefusesWhatNoKernelServes) {
  const MaskHandle mask = make(flashmask_mask_causal, kRows, kColumns);
  flashmask_plan* plan = nullptr;
  flashmask_plan_options options = FLASHMASK_INIT(flashmask_plan_options);
  options.kernel = "nosuch";
  EXPECT_NE(flashmask_plan_create(mask.get(), &kProblem, &options, &plan), FLASHMASK_OK);
  EXPECT_NE(std::string(flashmask_last_error()).find("nosuch"), std::string::npos) << flashmask_last_error();
  flashmask_problem problem = kProblem;
  problem.kv_heads = 3;
  EXPECT_EQ(flashmask_plan_create(mask.get(), &problem, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT);
  problem = kProblem;
  problem.dtype = 3;
  expect_refused(flashmask_plan_create(mask.get(), &problem, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "problem.dtype is 3");
  problem = kProblem;
  problem.bias = std::int64_t{1} << 32;
  expect_refused(flashmask_plan_create(mask.get(), &problem, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "problem.bias is 4294967296; give 0 to 3");
  problem = kProblem;
  problem.change = "softcap(50) | sigmoid";
  expect_refused(flashmask_plan_create(mask.get(), &problem, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "score: \"sigmoid\" is no step of a change");
  problem.change = "softcap(50)";
  problem.bias = FLASHMASK_BIAS_ALIBI;
  expect_refused(flashmask_plan_create(mask.get(), &problem, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT,
                 "problem.change is given, and softcap or bias too");
  EXPECT_EQ(plan, nullptr);
}

TEST(PlanHandle, RefusesNullAndUnknownDirections) {
  const MaskHandle mask = make(flashmask_mask_causal, kRows, kColumns);
  const PlanHandle plan = make_plan();
  flashmask_plan* result = nullptr;
  const char* name = nullptr;
  std::size_t bytes = 0;
  expect_refused(flashmask_plan_create(nullptr, &kProblem, nullptr, &result), FLASHMASK_INVALID_ARGUMENT,
                 "mask is NULL");
  expect_refused(flashmask_plan_create(mask.get(), nullptr, nullptr, &result), FLASHMASK_INVALID_ARGUMENT,
                 "problem is NULL");
  expect_refused(flashmask_plan_create(mask.get(), &kProblem, nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT,
                 "plan is NULL");
  expect_refused(flashmask_plan_kernel(nullptr, 0, &name), FLASHMASK_INVALID_ARGUMENT, "plan is NULL");
  flashmask_compiled_kernel compiled{};
  compiled.struct_size = sizeof(compiled);
  compiled.name = "none";
  ASSERT_EQ(flashmask_plan_compiled_kernel(plan.get(), FLASHMASK_FORWARD, 0, &compiled), FLASHMASK_OK);
  EXPECT_EQ(compiled.name, nullptr) << "a CPU's plan compiles nothing";
  expect_refused(flashmask_plan_kernel(plan.get(), 2, &name), FLASHMASK_INVALID_ARGUMENT, "direction is 2");
  expect_refused(flashmask_plan_workspace(plan.get(), 0, 1, nullptr), FLASHMASK_INVALID_ARGUMENT, "bytes is NULL");
  expect_refused(flashmask_plan_workspace(nullptr, 0, 1, &bytes), FLASHMASK_INVALID_ARGUMENT, "plan is NULL");
  flashmask_plan_destroy(nullptr);
}

}  // namespace
}  // namespace flashmask::c_api
