// SPDX-License-Identifier: Apache-2.0
#include "flashmask/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/gappy_tensor.h"
#include "flashmask/attention.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kit/host_tensor.h"
#include "kit/rounding.h"

namespace flashmask {
namespace {

using check::HostTensor;
using test::GappyTensor;

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr float kEmptyByFlashAttention = std::numeric_limits<float>::infinity();
constexpr std::int64_t kBatch = 2, kRows = 70, kHeads = 3;

/// What the rounding of a result to its dtype costs, with room for the float32 arithmetic before it.
double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : dtype == DType::bf16 ? 5e-3 : 7e-4; }

/// One side's lse at a row: both present, one or both empty, far apart, by turns.
float lse_of(int side, std::int64_t i, check::RandomNumbers& random) {
  const float empty = i % 2 == 0 ? kEmpty : kEmptyByFlashAttention;
  if (i % 7 == 1 && side == 0) return empty;
  if (i % 7 == 2 && side == 1) return empty;
  if (i % 7 == 3) return i % 3 == 0 ? kEmpty : empty;
  if (i % 7 == 4) return side == 0 ? 200.0F : -3.0F;
  return 3 * random.normal();
}

struct Tensors {
  DType dtype;
  std::int64_t dim;
  HostTensor o1 = values(), o2 = values(), o = values(), grad_o = values(), grad_o1 = values(), grad_o2 = values();
  HostTensor lse1 = lines(), lse2 = lines(), lse = lines(), grad_lse = lines(), grad_lse1 = lines(),
             grad_lse2 = lines();

  Tensors(DType type, std::int64_t size) : dtype(type), dim(size) {
    check::RandomNumbers random(3);
    for (HostTensor* input : {&o1, &o2, &grad_o, &grad_lse}) input->fill_normal(random);
    for (std::int64_t i = 0; i < lse.size(); ++i) {
      lse1.set(i, lse_of(0, i, random));
      lse2.set(i, lse_of(1, i, random));
    }
  }

  HostTensor values() const { return {dtype, {kBatch, kRows, kHeads, dim}}; }
  static HostTensor lines() { return {DType::f32, {kBatch, kHeads, kRows}}; }

  MergeTensors forward() const { return {{{o1.view(), lse1.view()}, {o2.view(), lse2.view()}}, o.view(), lse.view()}; }
  MergeGradients backward() const {
    return {{{o1.view(), lse1.view(), grad_o1.view(), grad_lse1.view()},
             {o2.view(), lse2.view(), grad_o2.view(), grad_lse2.view()}},
            o.view(),
            lse.view(),
            grad_o.view(),
            grad_lse.view()};
  }

  /// Calls body(position in lse, first position in o) for every row and head.
  template <class Body>
  void each(const Body& body) const {
    for (std::int64_t b = 0; b < kBatch; ++b)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t s = 0; s < kRows; ++s)
          body((b * kHeads + h) * kRows + s, ((b * kRows + s) * kHeads + h) * dim);
  }
};

/// Each side's share, in double precision, as a softmax over two numbers.
struct Parts {
  double first = 0, second = 0, lse = -HUGE_VAL;

  Parts(double lse1, double lse2) {
    const double of_first = std::isinf(lse1) ? 0 : std::exp(lse1), of_second = std::isinf(lse2) ? 0 : std::exp(lse2);
    const double sum = of_first + of_second;
    if (sum == 0) return;
    first = of_first / sum;
    second = of_second / sum;
    lse = std::log(sum);
  }
};

void expect_near(double given, double expected, double bound) {
  if (std::isinf(expected)) {
    ASSERT_EQ(given, expected);
  } else {
    ASSERT_NEAR(given, expected, bound * std::max(1.0, std::abs(expected)));
  }
}

class Merge : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, Merge, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& dtype) { return to_string(dtype.param); });

TEST_P(Merge, IsTheSoftmaxOverBothSides) {
  for (const std::int64_t dim : {1, 4, 23, 64}) {
    const Tensors t(GetParam(), dim);
    merge(t.forward());
    t.each([&](std::int64_t line, std::int64_t row) {
      const Parts parts(t.lse1.at(line), t.lse2.at(line));
      expect_near(t.lse.at(line), parts.lse, 1e-6);
      for (std::int64_t d = row; d < row + dim; ++d)
        expect_near(t.o.at(d), parts.first * t.o1.at(d) + parts.second * t.o2.at(d), tolerance(GetParam()));
    });
  }
}

/// d/d lse1 of Σ grad_o · o + grad_lse · lse, with the derivatives of a softmax over two numbers.
TEST_P(Merge, DifferentiatesTheSoftmaxOverBothSides) {
  for (const std::int64_t dim : {1, 4, 23, 64}) {
    const Tensors t(GetParam(), dim);
    merge(t.forward());
    merge_backward(t.backward());
    t.each([&](std::int64_t line, std::int64_t row) {
      const Parts parts(t.lse1.at(line), t.lse2.at(line));
      double moved = 0, size = 1;
      for (std::int64_t d = row; d < row + dim; ++d) {
        expect_near(t.grad_o1.at(d), parts.first * t.grad_o.at(d), tolerance(GetParam()));
        expect_near(t.grad_o2.at(d), parts.second * t.grad_o.at(d), tolerance(GetParam()));
        moved += t.grad_o.at(d) * (static_cast<double>(t.o1.at(d)) - t.o2.at(d));
        size += std::abs(t.grad_o.at(d)) * (1 + std::abs(t.o1.at(d)));
      }
      moved *= parts.first * parts.second;
      const double bound = tolerance(GetParam()) * size;
      ASSERT_NEAR(t.grad_lse1.at(line), moved + parts.first * t.grad_lse.at(line), bound);
      ASSERT_NEAR(t.grad_lse2.at(line), parts.second * t.grad_lse.at(line) - moved, bound);
    });
  }
}

TEST_P(Merge, WithoutAGradientOfLseTakesItAsZero) {
  Tensors t(GetParam(), 16);
  for (std::int64_t i = 0; i < t.grad_lse.size(); ++i) t.grad_lse.set(i, 0);
  merge(t.forward());
  merge_backward(t.backward());
  const std::vector<double> expected = t.grad_lse1.values();
  MergeGradients without = t.backward();
  without.grad_lse = {};
  t.grad_lse1.fill_nan();
  merge_backward(without);
  EXPECT_EQ(t.grad_lse1.values(), expected);
}

/// The merged row is that of the first side, or nothing where that is empty too.
void expect_first_side(const Tensors& t, std::int64_t line, std::int64_t row) {
  const bool empty = std::isinf(t.lse1.at(line));
  ASSERT_EQ(t.lse.at(line), empty ? kEmpty : t.lse1.at(line));
  ASSERT_EQ(t.grad_lse2.at(line), 0);
  for (std::int64_t d = row; d < row + t.dim; ++d) {
    ASSERT_EQ(t.o.at(d), empty ? 0 : t.o1.at(d));
    ASSERT_EQ(t.grad_o1.at(d), empty ? 0 : t.grad_o.at(d));
    ASSERT_EQ(t.grad_o2.at(d), 0);
  }
}

TEST_P(Merge, TakesAnEmptySideForNothing) {
  Tensors t(GetParam(), 20);
  t.o2.fill_nan();
  t.grad_lse.fill_nan();
  for (std::int64_t i = 0; i < t.lse2.size(); ++i) t.lse2.set(i, kEmpty);
  const HostTensor other_way = t.values();
  merge({{{t.o2.view(), t.lse2.view()}, {t.o1.view(), t.lse1.view()}}, other_way.view(), t.lse.view()});
  merge(t.forward());
  EXPECT_EQ(other_way.values(), t.o.values());
  MergeGradients gradients = t.backward();
  gradients.grad_lse = {};
  merge_backward(gradients);
  t.each([&](std::int64_t line, std::int64_t row) { expect_first_side(t, line, row); });
}

TEST_P(Merge, TakesStridesAndWritesNothingElse) {
  const Tensors t(GetParam(), 23);
  merge(t.forward());
  merge_backward(t.backward());
  const GappyTensor o1(t.o1), o2(t.o2), o(t.o1), merged(t.o), grad_o(t.grad_o), grad_o1(t.o1), grad_o2(t.o1);
  MergeTensors forward = t.forward();
  forward.parts[0].o = o1.view();
  forward.parts[1].o = o2.view();
  forward.o = o.view();
  merge(forward);
  o.expect_values_of(t.o);
  MergeGradients backward = t.backward();
  backward.parts[0].o = o1.view();
  backward.parts[1].o = o2.view();
  backward.o = merged.view();
  backward.grad_o = grad_o.view();
  backward.parts[0].grad_o = grad_o1.view();
  backward.parts[1].grad_o = grad_o2.view();
  merge_backward(backward);
  grad_o1.expect_values_of(t.grad_o1);
  grad_o2.expect_values_of(t.grad_o2);
  for (const GappyTensor* tensor : {&o1, &o2, &o, &merged, &grad_o, &grad_o1, &grad_o2}) tensor->expect_canaries();
}

TEST_P(Merge, MayWriteOverASide) {
  const Tensors t(GetParam(), 23);
  merge(t.forward());
  const Tensors over(GetParam(), 23);
  MergeTensors in_place = over.forward();
  in_place.o = in_place.parts[0].o;
  in_place.lse = in_place.parts[0].lse;
  merge(in_place);
  EXPECT_EQ(over.o1.values(), t.o.values());
  EXPECT_EQ(over.lse1.values(), t.lse.values());
}

/// Many parts, of which some are empty at some places, against sums in double precision.
TEST_P(Merge, TakesAnyNumberOfParts) {
  constexpr std::int64_t kParts = 37, kDim = 20;
  const Tensors t(GetParam(), kDim);
  check::RandomNumbers random(8);
  std::vector<HostTensor> o, lse;
  MergeTensors forward = t.forward();
  forward.parts.clear();
  for (std::int64_t part = 0; part < kParts; ++part) {
    o.push_back(t.values());
    lse.push_back(Tensors::lines());
    o.back().fill_normal(random);
    for (std::int64_t i = 0; i < t.lse.size(); ++i)
      lse.back().set(i, (i + part) % 3 == 0 || i % 11 == 0 ? kEmpty : 4 * random.normal());
    forward.parts.push_back({o.back().view(), lse.back().view()});
  }
  merge(forward);
  t.each([&](std::int64_t line, std::int64_t row) {
    double sum = 0;
    std::vector<double> values(kDim, 0);
    for (std::size_t part = 0; part < kParts; ++part) {
      const double own = std::exp(lse[part].at(line));
      sum += own;
      for (std::int64_t d = 0; d < kDim; ++d) values[static_cast<std::size_t>(d)] += own * o[part].at(row + d);
    }
    expect_near(t.lse.at(line), std::log(sum), 1e-6);
    for (std::int64_t d = 0; d < kDim; ++d)
      expect_near(t.o.at(row + d), sum == 0 ? 0 : values[static_cast<std::size_t>(d)] / sum, tolerance(GetParam()));
  });
}

/// Attention over all keys is that over the first and that over the others, merged.
TEST(MergeOfAttention, IsAttentionOverAllKeys) {
  Problem p;
  p.query_length = p.key_length = 100;
  p.query_heads = 2;
  p.head_dim = p.value_dim = 32;
  const check::AttentionTensors all(p, 5);
  const Mask causal = masks::causal(100, 100);
  forward(plan(causal, p), all.forward());
  const auto attend_to = [&](bool early, const HostTensor& o, const HostTensor& lse) {
    const Mask part = from_predicate({1, 1, 100, 100}, [early](std::int64_t, std::int64_t, std::int64_t,
                                                               std::int64_t column) { return (column < 40) == early; });
    ForwardTensors tensors = all.forward();
    tensors.o = o.view();
    tensors.lse = lse.view();
    forward(plan(causal & part, p), tensors);
  };
  const HostTensor o1(DType::f32, {1, 100, 2, 32}), o2(DType::f32, {1, 100, 2, 32});
  const HostTensor lse1(DType::f32, {1, 2, 100}), lse2(DType::f32, {1, 2, 100});
  attend_to(true, o1, lse1);
  attend_to(false, o2, lse2);
  merge({{{o1.view(), lse1.view()}, {o2.view(), lse2.view()}}, o1.view(), lse1.view()});
  for (std::int64_t i = 0; i < o1.size(); ++i) ASSERT_NEAR(o1.at(i), all.o.at(i), 2e-6);
  for (std::int64_t i = 0; i < lse1.size(); ++i) ASSERT_NEAR(lse1.at(i), all.lse.at(i), 2e-6);
}

template <class Call>
std::string message_of(const Call& call, Status status = Status::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status);
    return error.what();
  }
  return "no error";
}

TEST(MergeChecks, NameTheTensorThatDoesNotFit) {
  const Tensors t(DType::f32, 8);
  MergeTensors wrong = t.forward();
  wrong.parts[1].o.shape[3] = 7;
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: o2: shape is (2, 70, 3, 7); expected (2, 70, 3, 8)");
  wrong = t.forward();
  wrong.parts[1].lse = {};
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: lse2: shape is absent; expected (2, 3, 70)");
  wrong = t.forward();
  wrong.o.dtype = DType::bf16;
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: o: dtype is bf16; expected f32");
  wrong = t.forward();
  wrong.parts[0].o = {};
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: o1: rank is 0; expected 4, (batch, rows, heads, dim)");
  wrong = t.forward();
  wrong.parts[0].o.device.type = DeviceType::cuda;
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: lse1: device is cpu; expected cuda:0, that of the call");
  wrong = t.forward();
  wrong.parts.clear();
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: there are no parts; expected at least one");
  wrong = t.forward();
  wrong.parts[0].o.shape[1] = -1;
  EXPECT_EQ(message_of([&] { merge(wrong); }), "merge: o1: a size is -1; expected 0 or more");
  MergeGradients gradients = t.backward();
  gradients.grad_lse.shape[2] = 1;
  EXPECT_EQ(message_of([&] { merge_backward(gradients); }),
            "merge_backward: grad_lse: shape is (2, 3, 1); expected (2, 3, 70)");
}

TEST(MergeChecks, RefuseOutputsThatOverlap) {
  const Tensors t(DType::f32, 8);
  MergeTensors shifted = t.forward();
  shifted.o.strides[1] = 0;
  EXPECT_EQ(message_of([&] { merge(shifted); }).find("merge: o: strides are"), 0)
      << message_of([&] { merge(shifted); });
  shifted.o = shifted.parts[0].o;
  shifted.parts[1].o.data = static_cast<float*>(shifted.o.data) + 8;
  EXPECT_EQ(message_of([&] { merge(shifted); }),
            "merge: o: its memory overlaps that of o2; expected memory of its own for each output");
  MergeGradients shared = t.backward();
  shared.parts[1].grad_o = shared.parts[0].grad_o;
  EXPECT_EQ(message_of([&] { merge_backward(shared); }),
            "merge_backward: grad_o2: its memory overlaps that of grad_o1; expected memory of its own for each output");
  shared = t.backward();
  shared.parts[0].grad_lse = shared.grad_lse;
  EXPECT_EQ(
      message_of([&] { merge_backward(shared); }),
      "merge_backward: grad_lse1: its memory overlaps that of grad_lse; expected memory of its own for each output");
}

TEST(MergeChecks, TakeNoRows) {
  const HostTensor o(DType::f32, {1, 0, 2, 8}), lse(DType::f32, {1, 2, 0});
  merge({{{o.view(), lse.view()}, {o.view(), lse.view()}}, o.view(), lse.view()});
}

TEST(MergeChecks, NameADeviceThatIsNotThere) {
  const Tensors t(DType::f32, 8);
  MergeTensors elsewhere = t.forward();
  const Device nowhere{DeviceType::cuda, 99};
  for (MergePart& part : elsewhere.parts) part.o.device = part.lse.device = nowhere;
  elsewhere.o.device = elsewhere.lse.device = nowhere;
  try {
    merge(elsewhere);
    FAIL() << "merged on " << to_string(nowhere);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:99"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace flashmask
