// SPDX-License-Identifier: Apache-2.0
// Under invariant plans on a GPU, a document has the bits that it has alone: o, lse and the gradients of q, k and v.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/kernels_under_test.h"
#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/reference.h"
#include "kit/error_bound.h"
#include "kit/naive_attention.h"
#include "kit/placed_attention.h"
#include "plan/document_bits.h"
#include "plan/plan_choice.h"
#include "plan/refusal.h"
#include "schedule/random_packs.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using test::Place;

constexpr Device kDevice{DeviceType::cuda, 0};

std::vector<KernelInfo> invariant_kernels() {
  std::vector<KernelInfo> chosen;
  for (const Direction direction : {Direction::forward, Direction::backward})
    for (const KernelInfo& kernel : check::cuda_kernels(direction))
      if (kernel.features.has(Feature::invariant)) chosen.push_back(kernel);
  return chosen;
}

/// Runs both directions; the outputs of `tensors` receive the results.
void attend(const Mask& mask, const Problem& problem, const PlanOptions& options, AttentionTensors& tensors) {
  tensors.clear_outputs();
  check::PlacedPlan placed(mask, problem, options);
  const check::PlacedTensors there(tensors, problem.device);
  placed.forward(there.forward());
  placed.backward(there.backward());
  check::synchronize_device();
  there.fetch();
}

class CudaInvariance : public testing::TestWithParam<KernelInfo> {
 protected:
  PlanOptions options(Visit visit = Visit::active) const {
    return {.visit = visit, .form = GetParam().predicate, .kernel = GetParam().name, .invariant = true};
  }

  Problem problem(std::int64_t rows, std::int64_t columns, std::int64_t batch = 1) const {
    Problem p;
    p.batch = batch;
    p.query_length = rows;
    p.key_length = columns;
    p.query_heads = 4;
    p.kv_heads = 2;
    p.head_dim = GetParam().head_dim;
    p.value_dim = GetParam().value_dim;
    p.dtype = GetParam().dtype;
    p.device = kDevice;
    return p;
  }

  bool takes_bits() const { return GetParam().predicate == MaskForm::bits; }

  void expect_as_alone(const AttentionTensors& packed, const Place& at, const Mask& document,
                       const Problem& whole) const {
    const std::int64_t rows = document.shape().rows, columns = document.shape().columns;
    Problem p = whole;
    p.batch = 1;
    p.query_length = rows;
    p.key_length = columns;
    AttentionTensors alone(p, 77);
    test::copy_inputs(packed, at, alone, {}, rows, columns);
    attend(document, p, options(), alone);
    test::expect_same_documents(packed, at, alone, {}, rows, columns);
  }
};

INSTANTIATE_TEST_SUITE_P(Cuda, CudaInvariance, testing::ValuesIn(invariant_kernels()), check::test_name);

TEST_P(CudaInvariance, HoldsForDocumentsOfRandomPacks) {
  RandomPacks packs(17);
  for (const bool square : {true, false}) {
    const Pack pack = packs.pack(1500, square, takes_bits());
    const Problem p = problem(pack.rows, pack.columns);
    AttentionTensors packed(p, 3);
    attend(pack.whole(), p, options(), packed);
    for (const Pack::Document& document : pack.documents) {
      if (document.rows() == 1 && document.column % 4 != 0) continue;  // most are padding
      SCOPED_TRACE(document.name());
      expect_as_alone(packed, {0, document.row, document.column}, document.mask, p);
    }
  }
}

TEST_P(CudaInvariance, HoldsAtAnyPlaceInAnyBatchEntryBesideAnyNeighbour) {
  RandomPacks packs(29);
  const Mask document = packs.document(450, 450, takes_bits());
  for (const std::int64_t offset : {1, 63, 64, 100}) {
    SCOPED_TRACE(offset);
    const Mask both[] = {packs.around(document, offset, 751, takes_bits()).whole(),
                         packs.around(document, 200 - offset, 751, takes_bits()).whole()};
    const Problem p = problem(751, 751, 2);
    AttentionTensors packed(p, 5);
    attend(stack_batch(both), p, options(), packed);
    expect_as_alone(packed, {0, offset, offset}, document, p);
    expect_as_alone(packed, {1, 200 - offset, 200 - offset}, document, p);
  }
}

TEST_P(CudaInvariance, HoldsBehindManyShortDocuments) {
  const Problem p = problem(4096 + 1030, 4096 + 1030);
  std::vector<std::int64_t> lengths(64, 64);
  lengths.push_back(1030);
  AttentionTensors packed(p, 6);
  attend(masks::causal_document(lengths, 4096 + 1030), p, options(), packed);
  expect_as_alone(packed, {0, 4096, 4096}, masks::causal(1030, 1030), p);
}

/// Scores that grow by 2^9 and more inside a tile, beside neighbours of 10^4.
TEST_P(CudaInvariance, HoldsWhereMaximaGrowInsideATile) {
  const Problem p = problem(700, 700);
  AttentionTensors packed(p, 8);
  const float large = GetParam().dtype == DType::f16 ? 1e2F : 1e4F;
  const auto for_each = [&](check::HostTensor& tensor, const auto& value) {
    const std::int64_t width = tensor.size() / 700, dim = tensor.shape(3);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, value(i / width, i % dim, tensor.at(i)));
  };
  for_each(packed.k, [&](std::int64_t token, std::int64_t, float was) {
    return token < 90 || token >= 590 ? large * was : static_cast<float>(token - 90) * 0.125F;
  });
  for_each(packed.q, [&](std::int64_t token, std::int64_t c, float was) {
    return token < 90 || token >= 590 ? was : 1.0F + static_cast<float>((token * 7 + c) % 5);
  });
  attend(masks::document({90, 500, 110}, 700), p, options(), packed);
  expect_as_alone(packed, {0, 90, 90}, masks::full(500, 500), p);
}

/// Where tokens are gathered, not even a neighbour that is not finite reaches a document.
TEST_P(CudaInvariance, HoldsBesideNaNWhereTokensAreGathered) {
  const Problem p = problem(600, 600);
  const Mask documents = masks::causal_document({70, 370, 160}, 600);
  {
    const check::PlacedPlan placed(documents, p, options());
    for (const Direction direction : {Direction::forward, Direction::backward})
      if (!PlanAccess::moves_tokens(placed.plan(), direction))
        GTEST_SKIP() << placed.plan().kernel(direction).name << " reads what lies beside a document";
  }
  AttentionTensors packed(p, 9);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (check::HostTensor* input : {&packed.q, &packed.k, &packed.v, &packed.grad_o}) {
    const std::int64_t width = input->size() / 600;
    for (std::int64_t i = 0; i < input->size(); ++i)
      if (i / width < 70 || i / width >= 440) input->set(i, nan);
  }
  attend(documents, p, options(), packed);
  expect_as_alone(packed, {0, 70, 70}, masks::causal(370, 370), p);
}

TEST_P(CudaInvariance, WritesEveryRowAndNothingBehindTheLastDocument) {
  constexpr std::int64_t kTokens = 601, kGuarded = 800;
  const Problem p = problem(kTokens, kTokens);
  AttentionTensors all(problem(kGuarded, kGuarded), 16);
  all.clear_outputs();
  const check::PlacedTensors there(all, kDevice);
  const auto view = [&](const TensorView& tensor) { return test::first_tokens(tensor, kTokens); };
  check::PlacedPlan placed(masks::document({70, 369, 162}, kTokens), p, options());
  const BackwardTensors t = there.backward();
  placed.forward({view(t.q), view(t.k), view(t.v), view(t.o), view(t.lse)});
  placed.backward({view(t.q), view(t.k), view(t.v), view(t.o), view(t.lse), view(t.grad_o), view(t.grad_lse),
                   view(t.grad_q), view(t.grad_k), view(t.grad_v)});
  check::synchronize_device();
  there.fetch();
  for (const check::HostTensor* output : {&all.o, &all.lse, &all.grad_q, &all.grad_k, &all.grad_v})
    test::expect_written_until(*output, kTokens);
}

TEST_P(CudaInvariance, VisitingEveryTileChangesNoBit) {
  RandomPacks packs(31);
  const Pack pack = packs.pack(600, false, takes_bits());
  const Problem p = problem(pack.rows, pack.columns);
  AttentionTensors skipping(p, 14), visiting(p, 14);
  attend(pack.whole(), p, options(), skipping);
  attend(pack.whole(), p, options(Visit::all), visiting);
  test::expect_same_documents(skipping, {}, visiting, {}, pack.rows, pack.columns);
}

void expect_bound(const Problem& problem, const check::HostTensor& output, const std::vector<double>& reference,
                  const std::vector<double>& naive, const char* what) {
  check::ErrorBound bound(problem.dtype);
  bound.add(output.values(), reference, naive);
  EXPECT_LE(bound.result().ratio(), 1) << what;
}

TEST_P(CudaInvariance, HoldsTheBound) {
  RandomPacks packs(37);
  const Pack pack = packs.pack(900, false, takes_bits());
  const Problem p = problem(pack.rows, pack.columns);
  AttentionTensors tensors(p, 15);
  attend(pack.whole(), p, options(), tensors);
  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values(),
                            grad_o = tensors.grad_o.values(), grad_lse = tensors.grad_lse.values();
  const reference::Inputs inputs{q, k, v};
  const reference::Outputs outputs = reference::forward(p, pack.whole(), inputs);
  const reference::Gradients gradients = reference::backward(p, pack.whole(), inputs, grad_o, grad_lse);
  const check::naive::Results naive = check::naive::attend(p, pack.whole(), inputs, grad_o, grad_lse);
  expect_bound(p, tensors.o, outputs.o, naive.o, "o");
  expect_bound(p, tensors.grad_q, gradients.q, naive.grad_q, "grad_q");
  expect_bound(p, tensors.grad_k, gradients.k, naive.grad_k, "grad_k");
  expect_bound(p, tensors.grad_v, gradients.v, naive.grad_v, "grad_v");
}

TEST(InvariantOnDevice, RefusesWhatItCannotPromise) {
  if (check::cuda_devices().empty()) GTEST_SKIP() << "no GPU";
  Problem p;
  p.query_length = p.key_length = 256;
  p.head_dim = p.value_dim = 64;
  p.dtype = DType::bf16;
  p.device = kDevice;
  const PlanOptions invariant{.invariant = true};
  const Mask documents = masks::causal_document({100, 156}, 256);
  const auto expect_refused = [](Status status, const std::string& words, const auto& call) {
    const std::string said = refusal(call, status);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  expect_refused(Status::unsupported, "invariant and reorder",
                 [&] { plan_bytes(documents, p, {.reorder = true, .invariant = true}); });
  const Mask blocks = masks::full(256, 256) & block_maps::strided({1, 1, 256, 256}, 128, 2);
  expect_refused(Status::unsupported, "invariant and a block map", [&] { plan_bytes(blocks, p, invariant); });
  EXPECT_NO_THROW(plan_bytes(blocks, p, {.form = MaskForm::bits, .invariant = true}));
  Problem dropping = p;
  dropping.dropout = 0.1;
  expect_refused(Status::invalid_argument, "invariant and dropout",
                 [&] { plan_bytes(documents, dropping, invariant); });
  const DeviceDenseMask dense{reinterpret_cast<const std::uint8_t*>(256), {1, 1, 256, 256}, {65536, 65536, 256, 1}};
  expect_refused(Status::unsupported, "from the host", [&] { plan_bytes(dense, p, invariant); });
  AttentionTensors tensors(p, 1, check::Sinks::of_heads);
  const check::PlacedTensors there(tensors, kDevice);
  check::PlacedPlan placed(documents, p, invariant);
  placed.forward(there.forward());
  expect_refused(Status::unsupported, "the gradient of a sink is a sum", [&] { placed.backward(there.backward()); });
}

}  // namespace
}  // namespace flashmask
