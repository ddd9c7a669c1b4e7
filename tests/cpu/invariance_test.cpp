// SPDX-License-Identifier: Apache-2.0
// Under invariant plans, a document has the bits that it has alone: o, lse and the gradients of q, k and v.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cpu/gappy_tensor.h"
#include "cpu/kernels.h"
#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"
#include "flashmask/dropout.h"
#include "plan/document_bits.h"
#include "plan/refusal.h"
#include "schedule/random_packs.h"

namespace flashmask {
namespace {

using test::copy;
using test::copy_inputs;
using test::expect_same;
using test::expect_same_documents;
using test::Place;

void expect_all_written(const check::AttentionTensors& tensors) {
  for (const check::HostTensor* output : {&tensors.o, &tensors.grad_q, &tensors.grad_k, &tensors.grad_v})
    EXPECT_TRUE(test::all_finite(*output));
}

class Invariance : public test::EveryLevel {
 protected:
  PlanOptions options(Visit visit = Visit::active) const {
    PlanOptions given = test::forced(GetParam(), visit);
    given.invariant = true;
    return given;
  }

  Problem problem(std::int64_t rows, std::int64_t columns, std::int64_t batch = 1) const {
    Problem p = EveryLevel::problem(rows, columns);
    p.batch = batch;
    p.query_heads = 2;
    p.kv_heads = 1;
    p.head_dim = 24;
    p.value_dim = 20;
    return p;
  }

  bool takes_bits() const { return GetParam().form == MaskForm::bits; }

  /// Computes a document alone, on the inputs that it has at `at`, and expects the same results.
  void expect_as_alone(const check::AttentionTensors& packed, const Place& at, const Mask& document,
                       const Problem& whole) const {
    const std::int64_t rows = document.shape().rows, columns = document.shape().columns;
    Problem p = whole;
    p.batch = 1;
    p.query_length = rows;
    p.key_length = columns;
    check::AttentionTensors alone(p, 77);
    copy_inputs(packed, at, alone, {}, rows, columns);
    test::attend(plan(document, p, options()), alone);
    expect_same_documents(packed, at, alone, {}, rows, columns);
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Invariance, testing::ValuesIn(test::levels()), test::level_name);

TEST_P(Invariance, HoldsForEveryDocumentOfRandomPacks) {
  RandomPacks packs(17);
  for (const bool square : {true, false}) {
    const Pack pack = packs.pack(500, square, takes_bits());
    const Problem p = problem(pack.rows, pack.columns);
    const check::AttentionTensors packed(p, 3);
    test::attend(plan(pack.whole(), p, options()), packed);
    expect_all_written(packed);
    for (const Pack::Document& document : pack.documents) {
      SCOPED_TRACE(document.name());
      expect_as_alone(packed, {0, document.row, document.column}, document.mask, p);
    }
    if (test::small_tests()) break;
  }
}

TEST_P(Invariance, HoldsAtAnyPlaceInAnyBatchEntryBesideAnyNeighbour) {
  RandomPacks packs(29);
  const Mask document = packs.document(150, 150, takes_bits());
  for (const std::int64_t offset : {1, 63, 64, 100}) {
    SCOPED_TRACE(offset);
    const Mask both[] = {packs.around(document, offset, 351, takes_bits()).whole(),
                         packs.around(document, 200 - offset, 351, takes_bits()).whole()};
    const Problem p = problem(351, 351, 2);
    const check::AttentionTensors packed(p, 5);
    test::attend(plan(stack_batch(both), p, options()), packed);
    expect_all_written(packed);
    expect_as_alone(packed, {0, offset, offset}, document, p);
    expect_as_alone(packed, {1, 200 - offset, 200 - offset}, document, p);
    if (test::small_tests()) break;
  }
}

TEST_P(Invariance, HoldsBehindManyTokens) {
  Problem p = problem(4096 + 130, 4096 + 130);
  p.query_heads = 1;
  p.head_dim = p.value_dim = 8;
  std::vector<std::int64_t> lengths(64, 64);
  lengths.push_back(130);
  const check::AttentionTensors packed(p, 6);
  test::attend(plan(masks::causal_document(lengths, 4096 + 130), p, options()), packed);
  expect_as_alone(packed, {0, 4096, 4096}, masks::causal(130, 130), p);
}

TEST_P(Invariance, HoldsForHeadsOfAnySize) {
  struct Dims {
    std::int64_t key, value;
  };
  for (const Dims dims : {Dims{64, 64}, {128, 128}, {192, 128}, {17, 33}, {256, 256}, {512, 512}}) {
    SCOPED_TRACE(dims.key);
    Problem p = problem(190, 190);
    p.query_heads = dims.key > 128 ? 1 : 2;
    p.head_dim = dims.key;
    p.value_dim = dims.value;
    const check::AttentionTensors packed(p, 7);
    test::attend(plan(masks::causal_document({30, 130, 30}, 190), p, options()), packed);
    expect_as_alone(packed, {0, 30, 30}, masks::causal(130, 130), p);
    if (test::small_tests()) break;
  }
}

/// A document ends where every head's does: one that a head splits further has the bits that both heads give it alone.
TEST_P(Invariance, HoldsWhereHeadsHaveOtherDocuments) {
  const Problem p = problem(300, 300);
  const auto heads = [](const Mask& first, const Mask& second) {
    const Mask both[] = {first, second};
    return stack_heads(both);
  };
  const check::AttentionTensors packed(p, 18);
  test::attend(plan(heads(masks::causal_document({70, 170, 60}, 300), masks::causal_document({70, 100, 130}, 300)), p,
                    options()),
               packed);
  expect_as_alone(packed, {0, 0, 0}, heads(masks::causal(70, 70), masks::causal(70, 70)), p);
  expect_as_alone(packed, {0, 70, 70},
                  heads(masks::causal_document({170, 60}, 230), masks::causal_document({100, 130}, 230)), p);
}

/// Scores that grow by 2^9 and more inside a tile, beside neighbours of 10^4.
TEST_P(Invariance, HoldsWhereMaximaGrowInsideATile) {
  const Problem p = problem(400, 400);
  check::AttentionTensors packed(p, 8);
  const float large = GetParam().dtype == DType::f16 ? 1e2F : 1e4F;
  for (std::int64_t token = 0; token < 400; ++token) {
    const bool neighbour = token < 90 || token >= 290;
    for (std::int64_t c = 0; c < p.head_dim; ++c) {
      const std::int64_t k = token * p.head_dim + c;
      packed.k.set(k, neighbour ? large * packed.k.at(k) : static_cast<float>(token - 90) * 0.25F);
      for (std::int64_t h = 0; h < 2; ++h) {
        const std::int64_t q = (token * 2 + h) * p.head_dim + c;
        packed.q.set(q, neighbour ? packed.q.at(q) : 4.0F + static_cast<float>((token * 7 + c) % 5));
      }
    }
  }
  test::attend(plan(masks::document({90, 200, 110}, 400), p, options()), packed);
  expect_all_written(packed);
  expect_as_alone(packed, {0, 90, 90}, masks::full(200, 200), p);
}

/// On the CPU not even a neighbour that is not finite reaches a document.
TEST_P(Invariance, HoldsBesideNaN) {
  const Problem p = problem(300, 300);
  check::AttentionTensors packed(p, 9);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (check::HostTensor* input : {&packed.q, &packed.k, &packed.v, &packed.grad_o}) {
    const std::int64_t width = input->size() / 300;
    for (std::int64_t i = 0; i < 300 * width; ++i)
      if (i / width < 70 || i / width >= 240) input->set(i, nan);
  }
  test::attend(plan(masks::causal_document({70, 170, 60}, 300), p, options()), packed);
  expect_as_alone(packed, {0, 70, 70}, masks::causal(170, 170), p);
}

TEST_P(Invariance, HoldsWithSinks) {
  const Problem whole = problem(300, 300);
  Problem alone = whole;
  alone.query_length = alone.key_length = 170;
  const check::AttentionTensors packed(whole, 10, check::Sinks::of_rows);
  check::AttentionTensors separate(alone, 11, check::Sinks::of_rows);
  copy_inputs(packed, {0, 70, 70}, separate, {}, 170, 170);
  copy({*packed.sinks, 0, 70}, *separate.sinks, 0, 0, 170);
  forward(plan(masks::causal_document({70, 170, 60}, 300), whole, options()), packed.forward());
  forward(plan(masks::causal(170, 170), alone, options()), separate.forward());
  expect_same("o", {packed.o, 0, 70}, {separate.o, 0, 0}, 170);
  expect_same("lse", {packed.lse, 0, 70}, {separate.lse, 0, 0}, 170);
}

TEST_P(Invariance, HoldsWithTheSameDropout) {
  Problem whole = problem(304, 304);
  whole.dropout = 0.25;
  Problem alone = whole;
  alone.query_length = alone.key_length = 170;
  const check::AttentionTensors packed(whole, 12);
  check::AttentionTensors separate(alone, 13);
  copy_inputs(packed, {0, 72, 72}, separate, {}, 170, 170);
  const auto run = [&](const Mask& mask, const Problem& p, const check::AttentionTensors& tensors,
                       std::span<const std::int32_t> place) {
    const Plan planned = plan(mask, p, options());
    const Execution execution{.dropout = {.seed = 5, .offset = 6}, .dropout_place = place};
    forward(planned, tensors.forward(), execution);
    backward(planned, tensors.backward(), execution);
  };
  Pack pack;
  pack.add(masks::causal(69, 69));
  pack.pad(3);
  pack.add(masks::causal(170, 170));
  pack.pad(62);
  run(pack.whole(), whole, packed, {});
  std::vector<std::int32_t> eights(22);
  std::iota(eights.begin(), eights.end(), 9);
  run(masks::causal(170, 170), alone, separate,
      flashmask::pack({.heads = 2, .row_eights = eights, .column_eights = eights}, alone));
  expect_same_documents(packed, {0, 72, 72}, separate, {}, 170, 170);
}

TEST_P(Invariance, VisitingEveryTileChangesNoBit) {
  RandomPacks packs(31);
  const Pack pack = packs.pack(400, false, takes_bits());
  const Problem p = problem(pack.rows, pack.columns);
  const check::AttentionTensors skipping(p, 14), visiting(p, 14);
  test::attend(plan(pack.whole(), p, options()), skipping);
  test::attend(plan(pack.whole(), p, options(Visit::all)), visiting);
  test::expect_same_results(skipping, visiting);
}

TEST_P(Invariance, WritesNothingOutsideTheTensors) {
  const Problem p = problem(300, 300);
  const Plan planned = plan(masks::causal_document({70, 170, 60}, 300), p, options());
  const check::AttentionTensors tensors(p, 15);
  test::attend(planned, tensors, &serial_executor());
  test::expect_same_in_gappy_memory(planned, tensors);
}

TEST_P(Invariance, LeavesRowsBehindTheLastDocumentAlone) {
  constexpr std::int64_t kTokens = 301, kGuarded = 400;
  const Problem p = problem(kTokens, kTokens);
  const check::AttentionTensors all(problem(kGuarded, kGuarded), 16);
  const auto view = [&](const check::HostTensor& tensor) { return test::first_tokens(tensor.view(), kTokens); };
  const Plan planned = plan(masks::document({70, 169, 62}, kTokens), p, options());
  forward(planned, {view(all.q), view(all.k), view(all.v), view(all.o), view(all.lse)});
  backward(planned, {view(all.q), view(all.k), view(all.v), view(all.o), view(all.lse), view(all.grad_o),
                     view(all.grad_lse), view(all.grad_q), view(all.grad_k), view(all.grad_v)});
  for (const check::HostTensor* output : {&all.o, &all.lse, &all.grad_q, &all.grad_k, &all.grad_v})
    test::expect_written_until(*output, kTokens);
}

void expect_refused(const std::string& words, const std::function<void()>& call) {
  const std::string said = refusal(call, Status::unsupported);
  EXPECT_NE(said.find(words), std::string::npos) << said;
}

TEST(InvariantPlans, RefuseWhatTheyCannotPromise) {
  Problem p;
  p.query_length = p.key_length = 256;
  p.head_dim = p.value_dim = 16;
  const PlanOptions invariant{.invariant = true};
  const Mask documents = masks::causal_document({100, 156}, 256);
  expect_refused("invariant and reorder", [&] { plan(documents, p, {.reorder = true, .invariant = true}); });
  const Mask blocks = masks::full(256, 256) & block_maps::strided({1, 1, 256, 256}, 128, 2);
  expect_refused("invariant and a block map", [&] { plan(blocks, p, invariant); });
  EXPECT_NO_THROW(plan(blocks, p, {.form = MaskForm::bits, .invariant = true}));
  Problem dropping = p;
  dropping.dropout = 0.1;
  expect_refused("begins at row 100", [&] { plan(documents, dropping, invariant); });
  const check::AttentionTensors tensors(p, 1, check::Sinks::of_heads);
  const Plan planned = plan(documents, p, invariant);
  forward(planned, tensors.forward());
  expect_refused("the gradient of a sink is a sum", [&] { backward(planned, tensors.backward()); });
}

}  // namespace
}  // namespace flashmask
