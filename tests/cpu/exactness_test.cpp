// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "flashmask/builders.h"
#include "gappy_tensor.h"
#include "kernels.h"
#include "kit/corpus.h"

namespace flashmask {
namespace {

class Exactness : public test::EveryLevel {};

INSTANTIATE_TEST_SUITE_P(Cpu, Exactness, testing::ValuesIn(test::levels()), test::level_name);

TEST_P(Exactness, VisitingEveryTileChangesNoBit) {
  for (const corpus::Size size : {corpus::Size{257, 257, 1}, corpus::Size{200, 328, 1}}) {
    for (const corpus::Entry& entry : corpus::entries()) {
      if (!entry.accepts(size)) continue;
      SCOPED_TRACE(entry.name);
      const Mask mask = entry.build(size);
      if (!test::serves(GetParam(), mask)) continue;
      const Problem p = problem(size.rows, size.columns);
      const check::AttentionTensors skipping(p, 5), visiting(p, 5);
      test::attend(plan(mask, p, test::forced(GetParam())), skipping);
      test::attend(plan(mask, p, test::forced(GetParam(), Visit::all)), visiting);
      test::expect_same_results(skipping, visiting);
    }
    if (test::small_tests()) break;
  }
}

/// A stranger's executor: fresh threads, more workers than the machine has processors.
class ManyThreads final : public Executor {
 public:
  explicit ManyThreads(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void run(int count, const std::function<void(int)>& body) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int workers_;
};

void expect_same_bits_for_any_threads(const Mask& mask, const Problem& p, const PlanOptions& options) {
  const Plan planned = plan(mask, p, options);
  const check::AttentionTensors one(p, 11);
  test::attend(planned, one, &serial_executor());
  for (const int threads : {2, 3, 8}) {
    SCOPED_TRACE(threads);
    ManyThreads executor(threads);
    const check::AttentionTensors many(p, 11);
    test::attend(planned, many, &executor);
    test::expect_same_results(one, many);
  }
  const check::AttentionTensors pooled(p, 11);
  test::attend(planned, pooled);
  test::expect_same_results(one, pooled);
  test::expect_same_in_gappy_memory(planned, one);
}

TEST_P(Exactness, AnyNumberOfThreadsGivesTheSameBits) {
  Problem p = problem(700, 650);
  p.query_heads = 4;
  p.kv_heads = 2;
  const Mask mask = masks::causal(700, 650) | masks::window(700, 650, 90, 30);
  expect_same_bits_for_any_threads(mask, p, test::forced(GetParam()));
}

TEST_P(Exactness, SoItDoesWhereHeadsTakeTurnsTileByTile) {
  Problem p = problem(1000, 1000);
  p.batch = 2;
  p.query_heads = 4;
  p.kv_heads = 2;
  const std::vector<std::int64_t> documents{60, 200, 17, 130, 90, 64, 70, 1, 120, 88, 100};
  expect_same_bits_for_any_threads(masks::causal_document(documents, 1000), p, test::forced(GetParam()));
}

/// Runs the workers one after another, as the contract of Executor allows.
class OneAfterAnother final : public Executor {
 public:
  int workers() const override { return 4; }
  void run(int count, const std::function<void(int)>& body) override {
    for (int i = 0; i < count; ++i) body(i);
  }
};

TEST_P(Exactness, AnExecutorMayRunItsWorkersOneAfterAnother) {
  const Problem p = problem(300, 300);
  const Plan planned = plan(masks::full(300, 300), p, test::forced(GetParam()));
  const check::AttentionTensors one(p, 2), sequential(p, 2);
  test::attend(planned, one, &serial_executor());
  OneAfterAnother executor;
  test::attend(planned, sequential, &executor);
  test::expect_same_results(one, sequential);
}

TEST_P(Exactness, RepeatsBitwiseUnderContention) {
  const Problem p = problem(400, 400);
  const Plan planned = plan(masks::causal(400, 400), p, test::forced(GetParam()));
  const check::AttentionTensors first(p, 4);
  test::attend(planned, first);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        const check::AttentionTensors again(p, 4);
        test::attend(planned, again);
        test::expect_same_results(first, again);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_P(Exactness, PackedDocumentsEqualSeparateCallsBitwise) {
  // Documents that begin on a tile edge meet the same tiles alone and packed: the results agree to the bit.
  const Problem whole = problem(384, 384), alone = problem(128, 128);
  const check::AttentionTensors packed(whole, 9);
  test::attend(
      plan(masks::causal_document(std::vector<std::int64_t>{128, 128, 128}, 384), whole, test::forced(GetParam())),
      packed);
  for (std::int64_t document = 0; document < 3; ++document) {
    check::AttentionTensors separate(alone, 1);
    const std::int64_t per_document = 128 * whole.head_dim;
    for (std::int64_t i = 0; i < per_document; ++i) {
      separate.q.set(i, packed.q.at(document * per_document + i));
      separate.k.set(i, packed.k.at(document * per_document + i));
      separate.v.set(i, packed.v.at(document * per_document + i));
      separate.grad_o.set(i, packed.grad_o.at(document * per_document + i));
    }
    for (std::int64_t i = 0; i < 128; ++i) separate.grad_lse.set(i, packed.grad_lse.at(document * 128 + i));
    test::attend(plan(masks::causal(128, 128), alone, test::forced(GetParam())), separate);
    for (std::int64_t i = 0; i < per_document; ++i) {
      ASSERT_EQ(separate.o.at(i), packed.o.at(document * per_document + i));
      ASSERT_EQ(separate.grad_q.at(i), packed.grad_q.at(document * per_document + i));
      ASSERT_EQ(separate.grad_k.at(i), packed.grad_k.at(document * per_document + i));
      ASSERT_EQ(separate.grad_v.at(i), packed.grad_v.at(document * per_document + i));
    }
  }
}

}  // namespace
}  // namespace flashmask
