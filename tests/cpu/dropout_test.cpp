// SPDX-License-Identifier: Apache-2.0
#include "flashmask/dropout.h"

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "flashmask/slice.h"
#include "kernels.h"
#include "kit/error_bound.h"
#include "kit/naive_attention.h"

namespace flashmask {
namespace {

class Dropout : public test::EveryLevel {
 protected:
  Problem dropping(double probability) const {
    Problem p = problem(257, 257);
    p.query_heads = 4;
    p.kv_heads = 2;
    p.dropout = probability;
    return p;
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Dropout, testing::ValuesIn(test::levels()), test::level_name);

check::AttentionTensors attend(const Plan& planned, const Problem& p, const DropoutState& state,
                               Executor* executor = nullptr) {
  check::AttentionTensors tensors(p, 6);
  Execution execution;
  execution.executor = executor;
  execution.dropout = state;
  forward(planned, tensors.forward(), execution);
  backward(planned, tensors.backward(), execution);
  return tensors;
}

TEST_P(Dropout, OfZeroIsBitwiseTheKernelWithoutAndReadsNoState) {
  const Problem p = dropping(0);
  const Plan planned = plan(masks::causal(257, 257), p, test::forced(GetParam()));
  test::expect_same_results(attend(planned, p, {}), attend(planned, p, {.seed = 3, .offset = ~std::uint64_t{0}}));
}

TEST_P(Dropout, RepeatsBitwiseForOneStateAndAnyNumberOfThreads) {
  const Problem p = dropping(0.25);
  const Plan planned = plan(masks::causal(257, 257), p, test::forced(GetParam()));
  const check::AttentionTensors first = attend(planned, p, {.seed = 3, .offset = 1});
  test::expect_same_results(first, attend(planned, p, {.seed = 3, .offset = 1}, &serial_executor()));
  EXPECT_FALSE(test::same_bits(first.o, attend(planned, p, {.seed = 3, .offset = 2}).o));
  EXPECT_FALSE(test::same_bits(first.o, attend(planned, p, {.seed = 4, .offset = 1}).o));
}

TEST_P(Dropout, LeavesLseAlone) {
  const Problem with = dropping(0.25), without = dropping(0);
  const Mask mask = masks::sliding_window(257, 257, 100);
  const auto dropped = attend(plan(mask, with, test::forced(GetParam())), with, {.seed = 3, .offset = 1});
  const auto kept = attend(plan(mask, without, test::forced(GetParam())), without, {});
  EXPECT_TRUE(test::same_bits(dropped.lse, kept.lse));
  EXPECT_FALSE(test::same_bits(dropped.o, kept.o));
}

TEST_P(Dropout, DropsTheSameWhetherTilesAreSkippedOrVisited) {
  const Problem p = dropping(0.25);
  const Mask mask = masks::sliding_window(257, 257, 50);
  const DropoutState state{.seed = 11, .offset = 12};
  test::expect_same_results(attend(plan(mask, p, test::forced(GetParam())), p, state),
                            attend(plan(mask, p, test::forced(GetParam(), Visit::all)), p, state));
}

TEST_P(Dropout, RefusesAnOffsetBeyondTheCounter) {
  const Problem p = dropping(0.25);
  const Plan planned = plan(masks::causal(257, 257), p, test::forced(GetParam()));
  EXPECT_THROW(attend(planned, p, {.seed = 0, .offset = std::uint64_t{1} << 32}), Error);
}

TEST_P(Dropout, RefusesAStateOnADevice) {
  const Problem p = dropping(0.25);
  const Plan planned = plan(masks::causal(257, 257), p, test::forced(GetParam()));
  check::AttentionTensors tensors(p, 6);
  const std::uint64_t state[2] = {};
  const Execution execution{.dropout_on_device = state};
  for (const bool backwards : {false, true}) {
    try {
      if (backwards)
        backward(planned, tensors.backward(), execution);
      else
        forward(planned, tensors.forward(), execution);
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), Status::invalid_argument);
      EXPECT_EQ(std::string(error.what()), std::string(backwards ? "backward" : "forward") +
                                               ": dropout_on_device is given but the plan is for the CPU; give seed "
                                               "and offset themselves");
    }
  }
}

/// A part of 300 tokens and 6 heads, as one of several ranks computes it: two runs of rows, three of columns.
struct Part {
  explicit Part(const Problem& like) : whole(like), part(like) {
    whole.batch = part.batch = 2;
    whole.query_length = whole.key_length = 300;
    whole.query_heads = 6;
    part.query_heads = 2;
    part.kv_heads = 1;
    part.query_length = tokens(rows);
    part.key_length = tokens(columns);
  }

  static std::int64_t tokens(const std::vector<Span>& runs) {
    std::int64_t count = 0;
    for (const Span& run : runs) count += run.end - run.begin;
    return count;
  }
  static std::vector<std::int32_t> eights(const std::vector<Span>& runs) {
    std::vector<std::int32_t> found;
    for (const Span& run : runs)
      for (std::int64_t token = run.begin; token < run.end; token += 8)
        found.push_back(static_cast<std::int32_t>(token / 8));
    return found;
  }

  Problem whole, part;
  std::vector<Span> rows = {{16, 112}, {248, 300}}, columns = {{0, 72}, {104, 120}, {232, 300}};
  DropoutPlace place{.first_head = 3, .heads = 6, .row_eights = eights(rows), .column_eights = eights(columns)};
};

/// What dropout multiplies the scores of a part by, cut out of those of the whole.
std::vector<double> factors_of(const Part& of, const DropoutState& state) {
  const std::vector<double> whole = dropout_factors(of.whole, state);
  std::vector<double> factors;
  for (std::int64_t head = 0; head < of.part.batch * 2; ++head)
    for (const Span& rows : of.rows)
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        for (const Span& columns : of.columns) {
          const std::int64_t of_whole = head / 2 * of.whole.query_heads + of.place.first_head + head % 2;
          const auto line = whole.begin() + (of_whole * of.whole.query_length + row) * of.whole.key_length;
          factors.insert(factors.end(), line + columns.begin, line + columns.end);
        }
  return factors;
}

TEST_P(Dropout, OfAPartIsThatOfTheWhole) {
  const Part of(dropping(0.25));
  const DropoutState state{.seed = 8, .offset = 5};
  const Mask mask = slice(masks::causal(300, 300), of.rows, of.columns);
  const check::AttentionTensors tensors(of.part, 6);
  const std::vector<std::int32_t> place = pack(of.place, of.part);
  const Execution execution{.dropout = state, .dropout_place = place};
  const Plan planned = plan(mask, of.part, test::forced(GetParam()));
  forward(planned, tensors.forward(), execution);
  backward(planned, tensors.backward(), execution);

  const std::vector<double> q = tensors.q.values(), k = tensors.k.values(), v = tensors.v.values();
  const std::vector<double> grad_o = tensors.grad_o.values(), grad_lse = tensors.grad_lse.values();
  const std::vector<double> factors = factors_of(of, state);
  const reference::Inputs inputs{.q = q, .k = k, .v = v, .dropout = factors};
  const reference::Outputs outputs = reference::forward(of.part, mask, inputs);
  const reference::Gradients gradients = reference::backward(of.part, mask, inputs, grad_o, grad_lse);
  const check::naive::Results naive = check::naive::attend(of.part, mask, inputs, grad_o, grad_lse);
  const auto expect = [&](const char* name, const check::HostTensor& found, const std::vector<double>& right,
                          const std::vector<double>& rounded) {
    check::ErrorBound bound(of.part.dtype);
    bound.add(found.values(), right, rounded);
    EXPECT_LE(bound.result().ratio(), 1) << name;
  };
  expect("o", tensors.o, outputs.o, naive.o);
  expect("grad_q", tensors.grad_q, gradients.q, naive.grad_q);
  expect("grad_k", tensors.grad_k, gradients.k, naive.grad_k);
  expect("grad_v", tensors.grad_v, gradients.v, naive.grad_v);
}

TEST_P(Dropout, RefusesThePlaceOfAnotherProblem) {
  const Part of(dropping(0.25));
  const Plan planned = plan(masks::full(257, 257), dropping(0.25), test::forced(GetParam()));
  const check::AttentionTensors tensors(dropping(0.25), 6);
  const std::vector<std::int32_t> place = pack(of.place, of.part);
  EXPECT_THROW(forward(planned, tensors.forward(), {.dropout_place = place}), Error);
  EXPECT_THROW(backward(planned, tensors.backward(), {.dropout_place = place}), Error);
}

}  // namespace
}  // namespace flashmask
