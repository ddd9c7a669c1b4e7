// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "kernels.h"
#include "kit/corpus.h"

namespace flashmask {
namespace {

using check::AttentionTensors;
using check::HostTensor;

HostTensor like(const HostTensor& tensor, DType dtype) {
  return {dtype, {tensor.shape(0), tensor.shape(1), tensor.shape(2), tensor.shape(3)}};
}

/// With gradients of k and v in float32.
AttentionTensors summing(const Problem& p, std::uint64_t seed) {
  AttentionTensors tensors(p, seed);
  tensors.grad_k = like(tensors.grad_k, DType::f32);
  tensors.grad_v = like(tensors.grad_v, DType::f32);
  return tensors;
}

HostTensor rounded(const HostTensor& tensor, DType dtype) {
  HostTensor narrow = like(tensor, dtype);
  for (std::int64_t i = 0; i < tensor.size(); ++i) narrow.set(i, tensor.at(i));
  return narrow;
}

std::vector<test::Level> narrow_levels() {
  std::vector<test::Level> levels = test::levels();
  std::erase_if(levels, [](const test::Level& level) { return level.dtype == DType::f32; });
  return levels;
}

class Float32KeyGradients : public test::EveryLevel {
 protected:
  Problem grouped(const corpus::Size& size, double dropout = 0) const {
    Problem p = problem(size.rows, size.columns);
    p.query_heads = 4;
    p.kv_heads = 2;
    p.value_dim = 24;
    p.dropout = dropout;
    return p;
  }

  void expect_that_they_round_to_the_others(const Mask& mask, const Problem& p) const {
    const Plan planned = plan(mask, p, test::forced(GetParam()));
    const AttentionTensors wide = summing(p, 5), narrow(p, 5);
    test::attend(planned, wide);
    BackwardTensors again = wide.backward();
    again.grad_q = narrow.grad_q.view();
    again.grad_k = narrow.grad_k.view();
    again.grad_v = narrow.grad_v.view();
    backward(planned, again);
    EXPECT_TRUE(test::same_bits(wide.grad_q, narrow.grad_q));
    EXPECT_TRUE(test::same_bits(rounded(wide.grad_k, p.dtype), narrow.grad_k));
    EXPECT_TRUE(test::same_bits(rounded(wide.grad_v, p.dtype), narrow.grad_v));
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Float32KeyGradients, testing::ValuesIn(narrow_levels()), test::level_name);

TEST_P(Float32KeyGradients, RoundOnceToThoseOfTheDtypeOnTheCorpus) {
  for (const corpus::Case& one : corpus::cases(1)) {
    if (test::small_tests() && one.size.rows != 257) continue;
    const Mask mask = one.mask();
    if (!test::serves(GetParam(), mask)) continue;
    SCOPED_TRACE(one.name());
    expect_that_they_round_to_the_others(mask, grouped(one.size));
    if (HasFailure()) return;
  }
}

TEST_P(Float32KeyGradients, RoundOnceToThoseOfTheDtypeWithDropout) {
  expect_that_they_round_to_the_others(masks::causal(257, 257), grouped({257, 257}, 0.25));
}

/// Of tensors that are written past the caches.
TEST_P(Float32KeyGradients, RoundOnceToThoseOfTheDtypeWhereTheyAreLarge) {
  if (test::small_tests() || GetParam().form == MaskForm::bits) GTEST_SKIP() << "stores do not depend on the mask";
  Problem p = problem(2304, 2304);
  p.query_heads = p.kv_heads = 16;
  p.head_dim = p.value_dim = 64;
  expect_that_they_round_to_the_others(masks::sliding_window(2304, 2304, 8), p);
}

/// Makes what the backward adds to o · grad_o undo that o was rounded.
void correct_for_rounded_outputs(AttentionTensors& tensors, const std::vector<double>& exact) {
  const std::int64_t rows = tensors.o.shape(1), heads = tensors.o.shape(2), dim = tensors.o.shape(3);
  for (std::int64_t at = 0; at < tensors.lse.size(); ++at) {
    const std::int64_t batch = at / (heads * rows), head = at / rows % heads, row = at % rows;
    const std::int64_t first = ((batch * rows + row) * heads + head) * dim;
    double difference = 0;
    for (std::int64_t i = first; i < first + dim; ++i)
      difference += (tensors.o.at(i) - exact[static_cast<std::size_t>(i)]) * tensors.grad_o.at(i);
    tensors.grad_lse.set(at, static_cast<float>(tensors.grad_lse.at(at) + difference));
  }
}

/// Largest error, in units of the largest value.
double relative_error(const HostTensor& got, const std::vector<double>& expected) {
  double error = 0, largest = 0;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double value = expected[static_cast<std::size_t>(i)];
    error = std::max(error, std::abs(got.at(i) - value));
    largest = std::max(largest, std::abs(value));
  }
  return largest > 0 ? error / largest : error;
}

/// Their numbers are those of float32, not 16-bit ones in a wider place. Instruction sets that multiply bfloat16 round
/// probabilities and gradients of scores before they are summed.
TEST_P(Float32KeyGradients, AreAsNearTheReferenceAsFloat32Sums) {
  if (GetParam().arch.ends_with("bf16")) GTEST_SKIP() << "its products round what they sum to bfloat16";
  for (const corpus::Entry& entry : corpus::entries()) {
    const Mask mask = entry.build({130, 130, 1});
    if (!test::serves(GetParam(), mask)) continue;
    SCOPED_TRACE(entry.name);
    const Problem p = grouped({130, 130});
    const Plan planned = plan(mask, p, test::forced(GetParam()));
    AttentionTensors tensors = summing(p, 5);
    const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
    const reference::Inputs inputs{q, k, v};
    const reference::Gradients expected =
        reference::backward(p, mask, inputs, tensors.grad_o.values(), tensors.grad_lse.values());
    forward(planned, tensors.forward());
    correct_for_rounded_outputs(tensors, reference::forward(p, mask, inputs).o);
    backward(planned, tensors.backward());
    EXPECT_LT(relative_error(tensors.grad_k, expected.k), 2e-6);
    EXPECT_LT(relative_error(tensors.grad_v, expected.v), 2e-6);
  }
}

/// What they are for: those of some of the rows, added and rounded once, are those of all rows.
TEST_P(Float32KeyGradients, OfPartsOfTheRowsAddUp) {
  const Problem p = grouped({256, 256});
  const Mask mask = masks::causal(256, 256);
  AttentionTensors whole = summing(p, 5);
  test::attend(plan(mask, p, test::forced(GetParam())), whole);
  std::vector<double> sum_k(static_cast<std::size_t>(whole.grad_k.size()));
  std::vector<double> sum_v(static_cast<std::size_t>(whole.grad_v.size()));
  for (const std::int64_t dropped : {0, 128}) {
    std::vector<std::int64_t> rows(128);
    std::iota(rows.begin(), rows.end(), dropped);
    const AttentionTensors part = summing(p, 5);
    test::attend(plan(masks::drop_queries(mask, rows), p, test::forced(GetParam())), part);
    for (std::size_t i = 0; i < sum_k.size(); ++i) sum_k[i] += part.grad_k.at(static_cast<std::int64_t>(i));
    for (std::size_t i = 0; i < sum_v.size(); ++i) sum_v[i] += part.grad_v.at(static_cast<std::int64_t>(i));
  }
  EXPECT_LT(relative_error(whole.grad_k, sum_k), 1e-6);
  EXPECT_LT(relative_error(whole.grad_v, sum_v), 1e-6);
}

std::string refusal_of(const std::function<void(BackwardTensors&)>& change, const PlanOptions& options = {}) {
  Problem p;
  p.query_length = p.key_length = 400;
  p.head_dim = p.value_dim = 8;
  p.dtype = DType::bf16;
  const Mask scrambled = from_predicate({1, 1, 400, 400}, [](auto, auto, auto row, auto column) {
    return std::abs(row * 37 % 400 - column * 37 % 400) < 5;
  });
  const AttentionTensors tensors = summing(p, 1);
  BackwardTensors given = tensors.backward();
  change(given);
  try {
    const Plan planned = plan(scrambled, p, options);
    forward(planned, tensors.forward());
    backward(planned, given);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Float32KeyGradientChecks, WantBothInOneDtype) {
  const HostTensor narrow(DType::bf16, {1, 400, 1, 8});
  EXPECT_EQ(refusal_of([](BackwardTensors&) {}), "");
  EXPECT_EQ(refusal_of([&](BackwardTensors& t) { t.grad_v = narrow.view(); }),
            "backward: grad_v: dtype is bf16; expected f32");
  EXPECT_EQ(refusal_of([&](BackwardTensors& t) { t.grad_k = narrow.view(); }),
            "backward: grad_v: dtype is f32; expected bf16");
}

TEST(Float32KeyGradientChecks, RefuseAnotherOrderOfTokens) {
  EXPECT_EQ(refusal_of([](BackwardTensors&) {}, {.reorder = true}),
            "backward: grad_k and grad_v are f32 beside tensors of bf16, and the plan moves tokens; make the plan "
            "without `reorder`, or give them in bf16");
}

}  // namespace
}  // namespace flashmask
