// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpu/gappy_tensor.h"
#include "cpu/kernels.h"
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "flashmask/reorder.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"
#include "mask/scrambled_masks.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;
using test::Indices;

/// Two kv heads, four query heads, of unlike dims.
Problem problem(const Mask& mask, DType dtype, std::int64_t batch = 1) {
  Problem p;
  p.batch = batch;
  p.query_length = mask.shape().rows;
  p.key_length = mask.shape().columns;
  p.query_heads = 4;
  p.kv_heads = 2;
  p.head_dim = 24;
  p.value_dim = 17;
  p.dtype = dtype;
  return p;
}

Plan reordered(const Mask& mask, const Problem& p) {
  Plan planned = plan(mask, p, {.reorder = true});
  EXPECT_TRUE(planned.reordering()->gained) << planned.reordering()->why;
  return planned;
}

/// Rows and columns scrambled on their own.
Mask scrambled_rectangle(std::uint64_t seed) {
  check::RandomNumbers random(seed);
  const test::Pairs band =
      test::pairs_where(420, 600, [](auto i, auto j) { return std::abs(10 * i - 7 * j) <= 60 && i % 50 != 7; });
  return test::renamed(420, 600, band, test::random_order(420, random), test::random_order(600, random));
}

/// Fewer keys a head, under one scrambling.
Mask scrambled_heads(std::uint64_t seed) {
  const std::vector<Mask> heads = {test::scrambled_band(450, 6, seed), test::scrambled_band(450, 2, seed)};
  return stack_heads(heads);
}

/// Outputs and gradients within the bound of kit/error_bound.h.
void expect_right(const Mask& mask, const Problem& p, const Plan& planned) {
  AttentionTensors tensors(p, 1);
  test::attend(planned, tensors);
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const std::vector<double> grad_o = tensors.grad_o.values(), grad_lse = tensors.grad_lse.values();
  const reference::Outputs outputs = reference::forward(p, mask, {q, k, v});
  const reference::Gradients gradients = reference::backward(p, mask, {q, k, v}, grad_o, grad_lse);
  const check::naive::Results naive = check::naive::attend(p, mask, {q, k, v}, grad_o, grad_lse);
  const auto expect_within = [&](const char* name, const HostTensor& output, const std::vector<double>& expected,
                                 const std::vector<double>& rounded) {
    check::ErrorBound bound(p.dtype);
    bound.add(output.values(), expected, rounded);
    EXPECT_LE(bound.result().ratio(), 1) << name;
  };
  expect_within("o", tensors.o, outputs.o, naive.o);
  expect_within("grad_q", tensors.grad_q, gradients.q, naive.grad_q);
  expect_within("grad_k", tensors.grad_k, gradients.k, naive.grad_k);
  expect_within("grad_v", tensors.grad_v, gradients.v, naive.grad_v);
  for (std::int64_t i = 0; i < tensors.lse.size(); ++i) {
    const double expected = outputs.lse[static_cast<std::size_t>(i)];
    ASSERT_LE(check::compare_lse(p.dtype, tensors.lse.at(i), expected).ratio(), 1) << "lse " << i;
  }
}

/// What a message has to name.
void expect_refused(const std::function<void()>& call, const std::vector<std::string>& words) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::invalid_argument);
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in: " << error.what();
  }
}

class ReorderedPlan : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(EveryDtype, ReorderedPlan, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& dtype) { return to_string(dtype.param); });

TEST_P(ReorderedPlan, ComputesTheMaskInTheCallersOrder) {
  const Mask mask = test::scrambled_band(500, 7);
  const Problem p = problem(mask, GetParam());
  const Plan planned = reordered(mask, p);
  EXPECT_LT(planned.schedule(Direction::forward).counts().active(),
            plan(mask, p).schedule(Direction::forward).counts().active() / 2);
  expect_right(mask, p, planned);
}

TEST_P(ReorderedPlan, PermutesQueriesAndKeysOnTheirOwn) {
  const Mask mask = scrambled_rectangle(2);
  const Problem p = problem(mask, GetParam(), 2);
  expect_right(mask, p, reordered(mask, p));
}

TEST_P(ReorderedPlan, HasAnOrderForEachBatchEntryThatHeadsShare) {
  const std::vector<Mask> entries = {scrambled_heads(3), scrambled_heads(4)};
  const Mask mask = stack_batch(entries);
  const Problem p = problem(mask, GetParam(), 2);
  const Plan planned = reordered(mask, p);
  const Indices& rows = planned.reordering()->rows;
  ASSERT_EQ(std::ssize(rows), 2 * 450);
  EXPECT_FALSE(std::equal(rows.begin(), rows.begin() + 450, rows.begin() + 450));
  expect_right(mask, p, planned);
}

TEST_P(ReorderedPlan, ReadsAndWritesAnyStrides) {
  const Mask mask = scrambled_rectangle(5);
  const Problem p = problem(mask, GetParam(), 2);
  const Plan planned = reordered(mask, p);
  const AttentionTensors dense(p, 6);
  test::attend(planned, dense);
  test::expect_same_in_gappy_memory(planned, dense);
}

TEST(ReorderedPlans, GiveTheSameBitsForAnyNumberOfThreads) {
  const Mask mask = scrambled_rectangle(7);
  const Problem p = problem(mask, DType::f32, 3);
  const Plan planned = reordered(mask, p);
  const AttentionTensors one(p, 8), pooled(p, 8);
  test::attend(planned, one, &serial_executor());
  set_thread_count(5);
  test::attend(planned, pooled);
  set_thread_count(0);
  test::expect_same_results(one, pooled);
}

TEST(ReorderedPlans, DoWithoutTheGradientOfLse) {
  const Mask mask = test::scrambled_band(500, 7);
  const Problem p = problem(mask, DType::f32);
  const Plan planned = reordered(mask, p);
  AttentionTensors without(p, 9), zero(p, 9);
  for (std::int64_t i = 0; i < zero.grad_lse.size(); ++i) zero.grad_lse.set(i, 0.0F);
  test::attend(planned, zero);
  forward(planned, without.forward());
  BackwardTensors tensors = without.backward();
  tensors.grad_lse = {};
  backward(planned, tensors);
  EXPECT_EQ(without.grad_q.values(), zero.grad_q.values());
  EXPECT_EQ(without.grad_k.values(), zero.grad_k.values());
}

/// One direction in memory of the stated size.
void run_in(std::vector<std::byte>& memory, std::size_t stated, const Plan& planned, Direction direction,
            const AttentionTensors& tensors) {
  const Execution execution{&serial_executor(), memory.data(), stated};
  if (direction == Direction::forward) {
    forward(planned, tensors.forward(), execution);
  } else {
    backward(planned, tensors.backward(), execution);
  }
}

TEST(ReorderedPlans, StateTheWorkspaceTheyGatherInto) {
  const Mask mask = scrambled_rectangle(10);
  const Problem p = problem(mask, DType::bf16, 2);
  const Plan planned = reordered(mask, p), plain = plan(mask, p);
  const AttentionTensors own(p, 11), given(p, 11);
  test::attend(planned, own);
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    constexpr std::byte kCanary{0x5A};
    const std::size_t bytes = planned.workspace_bytes(direction, 1);
    EXPECT_GT(bytes, plain.workspace_bytes(direction, 1));
    std::vector<std::byte> memory(bytes + 64, kCanary);
    run_in(memory, bytes, planned, direction, given);
    memory.erase(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(bytes));
    EXPECT_EQ(memory, std::vector<std::byte>(64, kCanary));
    expect_refused([&] { run_in(memory, bytes - 1, planned, direction, given); },
                   {std::to_string(bytes), "workspace_bytes()"});
  }
  test::expect_same_results(own, given);
}

void expect_plain(const Mask& mask) {
  const Problem p = problem(mask, DType::f32);
  const Plan asked = plan(mask, p, {.reorder = true}), plain = plan(mask, p);
  EXPECT_FALSE(asked.reordering()->gained);
  EXPECT_FALSE(asked.reordering()->why.empty());
  EXPECT_EQ(asked.schedule(Direction::forward), plain.schedule(Direction::forward));
  EXPECT_EQ(asked.workspace_bytes(Direction::backward, 2), plain.workspace_bytes(Direction::backward, 2));
  const AttentionTensors a(p, 12), b(p, 12);
  test::attend(asked, a);
  test::attend(plain, b);
  test::expect_same_results(a, b);
}

TEST(ReorderedPlans, AreThePlainOnesWhereNothingIsGained) {
  expect_plain(masks::causal(300, 300));
  expect_plain(masks::full(1, 1));
  expect_plain(masks::sliding_window(200, 260, 30));
}

TEST(ReorderedPlans, SayNothingOfReorderingUnlessAsked) {
  const Mask mask = test::scrambled_band(500, 7);
  EXPECT_EQ(plan(mask, problem(mask, DType::f32)).reordering(), nullptr);
}

TEST(ReorderedPlans, RefuseDropout) {
  const Mask mask = test::scrambled_band(500, 7);
  Problem p = problem(mask, DType::f32);
  p.dropout = 0.1;
  expect_refused([&] { plan(mask, p, {.reorder = true}); }, {"reorder", "dropout"});
}

/// Token i of `permuted` is token order[i] of `original`.
void permute_tokens(const HostTensor& original, const Indices& order, HostTensor& permuted) {
  const std::int64_t width = original.shape(2) * original.shape(3);
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::int64_t c = 0; c < width; ++c)
      permuted.set(static_cast<std::int64_t>(i) * width + c, original.at(order[i] * width + c));
  }
}

void expect_permuted(const HostTensor& original, const Indices& order, const HostTensor& permuted) {
  HostTensor expected(DType::f32, {1, original.shape(1), original.shape(2), original.shape(3)});
  permute_tokens(original, order, expected);
  for (std::int64_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(permuted.at(i), expected.at(i), 2e-5) << i;
}

TEST(Permutation, OfAProblemPermutesItsAttention) {
  check::RandomNumbers random(13);
  const Mask mask = masks::causal(230, 310) & masks::window(230, 310, 90, 0);
  const Problem p = problem(mask, DType::f32);
  const Indices rows = test::random_order(230, random), columns = test::random_order(310, random);
  AttentionTensors original(p, 14), permuted(p, 15);
  permute_tokens(original.q, rows, permuted.q);
  permute_tokens(original.k, columns, permuted.k);
  permute_tokens(original.v, columns, permuted.v);
  permute_tokens(original.grad_o, rows, permuted.grad_o);
  for (AttentionTensors* tensors : {&original, &permuted}) {
    for (std::int64_t i = 0; i < tensors->grad_lse.size(); ++i) tensors->grad_lse.set(i, 0.25F);
  }
  test::attend(plan(mask, p), original);
  test::attend(plan(permute(mask, rows, columns), p), permuted);
  expect_permuted(original.o, rows, permuted.o);
  expect_permuted(original.grad_q, rows, permuted.grad_q);
  expect_permuted(original.grad_k, columns, permuted.grad_k);
  expect_permuted(original.grad_v, columns, permuted.grad_v);
}

}  // namespace
}  // namespace flashmask
