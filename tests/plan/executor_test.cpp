// SPDX-License-Identifier: Apache-2.0
#include "flashmask/executor.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/linear_attention.h"
#include "flashmask/merge.h"
#include "flashmask/partition.h"
#include "flashmask/reorder.h"
#include "kit/host_tensor.h"
#include "kit/linear_tensors.h"
#include "plan/refusal.h"

/// What calls say of an executor that breaks its contract.
namespace flashmask {
namespace {

using Body = std::function<void(int)>;

class Caller final : public Executor {
 public:
  Caller(int workers, std::function<void(int count, const Body& body)> run) : workers_(workers), run_(std::move(run)) {}

  int workers() const override { return workers_; }
  void run(int count, const Body& body) override { run_(count, body); }

 private:
  int workers_;
  std::function<void(int, const Body&)> run_;
};

void in_order(int count, const Body& body) {
  for (int i = 0; i < count; ++i) body(i);
}

/// Every kind of call that is given an executor.
std::vector<std::pair<std::string, std::function<void(Executor&)>>> calls() {
  constexpr std::int64_t kTokens = 300;
  const Mask mask = masks::causal_document({200, 90}, kTokens), scattered = masks::big_bird(kTokens, {.block = 16});
  const Problem p{.query_length = kTokens, .key_length = kTokens, .head_dim = 16, .value_dim = 16};
  const Plan planned = plan(mask, p), reordered = plan(mask, p, {.reorder = true});
  const LinearPlan linear = linear_plan(mask, {.length = kTokens, .key_dim = 16, .value_dim = 16});
  return {
      {"plan", [=](Executor& on) { plan(mask, p, {}, on); }},
      {"forward", [=](Executor& on) { forward(planned, check::AttentionTensors(p, 1).forward(), {.executor = &on}); }},
      {"backward",
       [=](Executor& on) { backward(planned, check::AttentionTensors(p, 1).backward(), {.executor = &on}); }},
      {"forward of moved tokens",
       [=](Executor& on) { forward(reordered, check::AttentionTensors(p, 1).forward(), {.executor = &on}); }},
      {"linear_forward",
       [=](Executor& on) { linear_forward(linear, check::LinearTensors(linear, 1).forward(), {.executor = &on}); }},
      {"linear_backward",
       [=](Executor& on) { linear_backward(linear, check::LinearTensors(linear, 1).backward(), {.executor = &on}); }},
      {"merge",
       [=](Executor& on) {
         const check::AttentionTensors a(p, 1), b(p, 2);
         const MergeTensors parts{
             .parts = {{a.o.view(), a.lse.view()}, {b.o.view(), b.lse.view()}}, .o = a.o.view(), .lse = a.lse.view()};
         merge(parts, {.executor = &on});
       }},
      {"from_predicate",
       [](Executor& on) {
         from_predicate(
             {1, 1, kTokens, kTokens}, [](auto, auto, auto, auto) { return true; }, on);
       }},
      {"schedule", [=](Executor& on) { schedule(scattered.lowered(), {}, Visit::active, on); }},
      {"reorder", [=](Executor& on) { reorder(scattered, {}, on); }},
      {"partition", [=](Executor& on) { partition(mask, 2, {}, on); }},
      {"loads",
       [=](Executor& on) {
         loads(Partition(kTokens, 1, {{{0, kTokens}, 0}}), mask, on);
       }},
      {"needs",
       [=](Executor& on) {
         needs(Partition(kTokens, 1, {{{0, kTokens}, 0}}), mask, on);
       }},
  };
}

struct Broken {
  Caller executor;
  std::string message;
};

TEST(Executor, ThatBreaksItsContractIsRefusedByEveryCall) {
  Broken broken[] = {
      {{2, [](int, const Body&) {}}, "executor.run returned after 0 of "},
      {{2, [](int count, const Body& body) { in_order(count - 1, body); }}, "executor.run returned after "},
      {{2, [](int count, const Body& body) { in_order(count + 1, body); }}, "executor.run called body("},
      {{2,
        [](int count, const Body& body) {
          in_order(count, body);
          body(0);
        }},
       "executor.run called body(0) of "},
      {{0, in_order}, "executor.workers returned 0; return at least 1"},
      {{-7, in_order}, "executor.workers returned -7; return at least 1"},
  };
  for (const auto& [name, call] : calls()) {
    Caller good(2, in_order);
    EXPECT_NO_THROW(call(good)) << name;
    for (auto& [executor, message] : broken) {
      SCOPED_TRACE(name + ": " + message);
      EXPECT_TRUE(refusal([&call = call, &executor = executor] { call(executor); }).starts_with(message));
    }
  }
}

}  // namespace
}  // namespace flashmask
