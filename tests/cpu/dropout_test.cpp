#include "flashmask/dropout.h"

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "kernels.h"

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

}  // namespace
}  // namespace flashmask
