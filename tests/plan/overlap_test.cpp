// SPDX-License-Identifier: Apache-2.0
#include "plan/overlap.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "kit/host_tensor.h"
#include "plan/refusal.h"

namespace flashmask {
namespace {

/// Calls body(byte) for each byte of each element, counted from address 0.
void for_each_byte(const TensorView& tensor, const std::function<void(std::int64_t)>& body) {
  const auto width = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
  std::vector<std::int64_t> places = {reinterpret_cast<std::intptr_t>(tensor.data)};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    std::vector<std::int64_t> next;
    for (const std::int64_t place : places)
      for (std::int64_t i = 0; i < tensor.shape[axis]; ++i) next.push_back(place + i * tensor.strides[axis] * width);
    places = std::move(next);
  }
  for (const std::int64_t place : places)
    for (std::int64_t byte = 0; byte < width; ++byte) body(place + byte);
}

TensorView random_tensor(std::mt19937& random) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  TensorView tensor;
  tensor.dtype = draw(0, 1) == 0 ? DType::f32 : DType::bf16;
  tensor.rank = draw(1, 4);
  tensor.data = reinterpret_cast<void*>(std::intptr_t{1000} + 2 * draw(0, 40));
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    tensor.shape[axis] = draw(1, 3);
    tensor.strides[axis] = draw(-12, 12);
  }
  return tensor;
}

TEST(Overlap, IsWhatListingEveryByteSays) {
  std::mt19937 random(1);
  int together = 0, alone = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView a = random_tensor(random), b = random_tensor(random);
    std::set<std::int64_t> bytes;
    bool twice = false, shared = false;
    for_each_byte(a, [&](std::int64_t byte) { twice = !bytes.insert(byte).second || twice; });
    for_each_byte(b, [&](std::int64_t byte) { shared = bytes.contains(byte) || shared; });
    ASSERT_EQ(overlaps_itself(a), twice) << "tensor " << i;
    ASSERT_EQ(overlap(a, b), shared) << "tensors " << i;
    together += shared;
    alone += !twice;
  }
  EXPECT_GT(together, 1000);
  EXPECT_GT(alone, 1000);
}

Problem problem_of(std::int64_t tokens) {
  Problem p;
  p.batch = 2;
  p.query_length = p.key_length = tokens;
  p.query_heads = p.kv_heads = 3;
  p.head_dim = p.value_dim = 8;
  return p;
}

/// Three tensors (batch, tokens, heads, dim) that interleave in one: heads of q, k and v side by side for each token,
/// or q, k and v side by side for each head.
struct Packed {
  Packed(const Problem& p, bool by_head) {
    const std::int64_t heads = p.query_heads, dim = p.head_dim, row = 3 * heads * dim;
    memory.resize(static_cast<std::size_t>(p.batch * p.query_length * row), 0.5F);
    for (std::int64_t i = 0; i < 3; ++i)
      views.push_back({.data = memory.data() + i * (by_head ? dim : heads * dim),
                       .rank = 4,
                       .shape = {p.batch, p.query_length, heads, dim},
                       .strides = {p.query_length * row, row, by_head ? 3 * dim : dim, 1}});
  }
  std::vector<float> memory;
  std::vector<TensorView> views;
};

TEST(Overlap, ViewsThatInterleaveInAPackedTensorAreApart) {
  const Problem p = problem_of(20);
  const Plan planned = plan(masks::causal(20, 20), p);
  for (const bool by_head : {false, true}) {
    const Packed qkv(p, by_head), gradients(p, by_head);
    const check::AttentionTensors own(p, 1);
    const TensorView q = qkv.views[0], k = qkv.views[1], v = qkv.views[2];
    EXPECT_NO_THROW(forward(planned, {q, k, v, own.o.view(), own.lse.view()}));
    EXPECT_NO_THROW(backward(planned, {.q = q,
                                       .k = k,
                                       .v = v,
                                       .o = own.o.view(),
                                       .lse = own.lse.view(),
                                       .grad_o = own.grad_o.view(),
                                       .grad_q = gradients.views[0],
                                       .grad_k = gradients.views[1],
                                       .grad_v = gradients.views[2]}));
  }
}

TEST(Overlap, OfInputsIsLegal) {
  const Plan planned = plan(masks::causal(20, 20), problem_of(20));
  const check::AttentionTensors t(problem_of(20), 1);
  const TensorView q = t.q.view();
  EXPECT_NO_THROW(forward(planned, {q, q, q, t.o.view(), t.lse.view()}));
}

std::string forward_refusal(const std::function<void(ForwardTensors&)>& spoil) {
  const Plan planned = plan(masks::causal(20, 20), problem_of(20));
  const check::AttentionTensors own(problem_of(20), 1);
  ForwardTensors tensors = own.forward();
  spoil(tensors);
  return refusal([&] { forward(planned, tensors); });
}

std::string backward_refusal(const std::function<void(BackwardTensors&)>& spoil) {
  const Plan planned = plan(masks::causal(20, 20), problem_of(20));
  const check::AttentionTensors own(problem_of(20), 1, check::Sinks::of_heads);
  forward(planned, own.forward());
  BackwardTensors tensors = own.backward();
  spoil(tensors);
  return refusal([&] { backward(planned, tensors); });
}

void expect_overlap(const std::string& text, const std::string& output, const std::string& other) {
  EXPECT_NE(text.find(output + ": its memory overlaps that of " + other), std::string::npos) << text;
}

TEST(Overlap, OfAnOutputIsRefusedByName) {
  expect_overlap(forward_refusal([](ForwardTensors& t) { t.o = t.v; }), "forward: o", "v;");
  expect_overlap(forward_refusal([](ForwardTensors& t) { t.lse.data = t.q.data; }), "forward: lse", "q;");
  expect_overlap(forward_refusal([](ForwardTensors& t) { t.lse.data = t.o.data; }), "forward: lse", "o;");
  expect_overlap(backward_refusal([](BackwardTensors& t) { t.grad_v = t.grad_k; }), "backward: grad_v", "grad_k;");
  expect_overlap(backward_refusal([](BackwardTensors& t) { t.grad_q = t.grad_o; }), "backward: grad_q", "grad_o;");
  expect_overlap(backward_refusal([](BackwardTensors& t) { t.grad_sinks = t.sinks; }), "backward: grad_sinks",
                 "sinks;");
  constexpr std::size_t kSize = 2UL * 20 * 3 * 8;
  std::vector<float> memory(2 * kSize);
  expect_overlap(backward_refusal([&](BackwardTensors& t) {
                   t.grad_q.data = memory.data();
                   t.grad_k.data = memory.data() + kSize - 1;  // the last element of grad_q
                 }),
                 "backward: grad_k", "grad_q;");
}

TEST(Overlap, OfElementsOfAnOutputIsRefusedByName) {
  const std::string text = backward_refusal([](BackwardTensors& t) { t.grad_k.strides[0] = 0; });
  EXPECT_NE(text.find("backward: grad_k: strides are (0, 24, 8, 1) of shape (2, 20, 3, 8)"), std::string::npos) << text;
  EXPECT_NE(forward_refusal([](ForwardTensors& t) { t.o.strides[1] = 4; }).find("forward: o: strides"),
            std::string::npos);
  // The stride of the batch is never taken where there is one entry.
  Problem p = problem_of(20);
  p.batch = 1;
  const check::AttentionTensors own(p, 1);
  ForwardTensors tensors = own.forward();
  tensors.o.strides[0] = 0;
  EXPECT_NO_THROW(forward(plan(masks::causal(20, 20), p), tensors));
}

}  // namespace
}  // namespace flashmask
