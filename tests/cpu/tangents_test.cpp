// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmask/builders.h"
#include "flashmask/dropout.h"
#include "flashmask/error.h"
#include "flashmask/reference.h"
#include "flashmask/reorder.h"
#include "kernels.h"
#include "kit/corpus.h"
#include "kit/heads.h"
#include "kit/tangent_call.h"

namespace flashmask {
namespace {

constexpr DropoutState kDropoutState{.seed = 5, .offset = 7};

/// Runs the forward and then its tangents.
struct Tangents : check::TangentCall {
  using TangentCall::TangentCall;

  void run(const Plan& plan, const Execution& execution = {.dropout = kDropoutState}) {
    clear_outputs();
    forward(plan, tensors.forward(), execution);
    forward_tangents(plan, views(), execution);
  }
};

class TangentsOfTheCorpus : public testing::TestWithParam<DType> {};

TEST_P(TangentsOfTheCorpus, AreThoseOfTheReference) {
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    std::size_t sizes = test::small_tests() ? 1 : 3;
    for (const corpus::Size& size : corpus::awkward_sizes()) {
      if (++turn % 2 == 0 || !entry.accepts(size) || sizes-- == 0) continue;
      const check::Heads& heads = check::kHeads[turn % check::kHeads.size()];
      const Mask mask = entry.build({size.rows, size.columns, heads.mask_heads});
      Problem p = check::problem_of(heads, mask.shape());
      p.dtype = GetParam();
      Tangents tangents(p, heads.sinks);
      const reference::Tangents expected = tangents.expected(mask, kDropoutState);
      for (const test::Level& level : test::levels()) {
        if (level.dtype != GetParam() || !test::serves(level, mask)) continue;
        tangents.run(plan(mask, p, test::forced(level)));
        const double of_o = check::tangent_error(tangents.of_o, expected.o),
                     of_lse = check::tangent_error(tangents.of_lse, expected.lse);
        EXPECT_LE(of_o, check::tangent_tolerance(p.dtype)) << "o of " << entry.name << " by " << test::name_of(level);
        EXPECT_LE(of_lse, check::tangent_tolerance(p.dtype))
            << "lse of " << entry.name << " by " << test::name_of(level);
      }
      if (sizes == 0) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TangentsOfTheCorpus, testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& one) { return to_string(one.param); });

class TangentsOfALevel : public test::EveryLevel {};

INSTANTIATE_TEST_SUITE_P(Cpu, TangentsOfALevel, testing::ValuesIn(test::levels()), test::level_name);

void expect_same(const Tangents& a, const Tangents& b) {
  EXPECT_TRUE(test::same_bits(a.of_o, b.of_o)) << "o";
  EXPECT_TRUE(test::same_bits(a.of_lse, b.of_lse)) << "lse";
}

TEST_P(TangentsOfALevel, AreTheSameBitsForAnyThreadsAndVisit) {
  Problem p = problem(300, 300);
  p.query_heads = 4;
  p.kv_heads = 2;
  const Mask mask = masks::causal_document({100, 37, 120}, 300);
  Tangents one(p), many(p), all(p);
  one.run(plan(mask, p, test::forced(GetParam())), {.executor = &serial_executor()});
  many.run(plan(mask, p, test::forced(GetParam())));
  all.run(plan(mask, p, test::forced(GetParam(), Visit::all)));
  expect_same(one, many);
  expect_same(one, all);
}

TEST_P(TangentsOfALevel, OfRowsThatSeeNothingAreZero) {
  const Problem p = problem(200, 70);  // the first 130 rows see nothing
  Tangents tangents(p);
  tangents.run(plan(masks::causal(200, 70), p, test::forced(GetParam())));
  for (std::int64_t row = 0; row < 130; ++row) {
    EXPECT_EQ(tangents.of_lse.at(row), 0);
    for (std::int64_t c = 0; c < 40; ++c) EXPECT_EQ(tangents.of_o.at(row * 40 + c), 0);
  }
}

TEST_P(TangentsOfALevel, OfHiddenKeysMayBeNaNInTilesThatNobodyVisits) {
  const Problem p = problem(64, 256);
  Tangents clean(p), dirty(p);
  const Mask mask = from_predicate({1, 1, 64, 256}, [](auto, auto, auto, auto column) { return column < 64; });
  for (std::int64_t i = 128 * 40; i < 256 * 40; ++i) dirty.of_k.set(i, std::nanf(""));
  clean.run(plan(mask, p, test::forced(GetParam())));
  dirty.run(plan(mask, p, test::forced(GetParam())));
  expect_same(clean, dirty);
}

std::string refusal(const Plan& plan, const TangentTensors& tensors, const Execution& execution = {}) {
  try {
    forward_tangents(plan, tensors, execution);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TangentsAreRefused, WhereTensorsDoNotFit) {
  const Mask mask = masks::causal(64, 64);
  const Problem p = check::problem_of({1, 2, 1, 1, 16, 8}, mask.shape());
  const Plan planned = plan(mask, p);
  const Tangents tangents(p);
  TangentTensors given = tangents.views();
  given.tangent_k = given.tangent_q;
  EXPECT_EQ(refusal(planned, given), "forward_tangents: tangent_k: shape is (1, 64, 2, 16); expected (1, 64, 1, 16)");
  given = tangents.views();
  given.tangent_o = given.o;
  EXPECT_NE(refusal(planned, given).find("tangent_o: its memory overlaps that of o;"), std::string::npos);
  EXPECT_NE(refusal(planned, tangents.views(), {.workspace = &given, .workspace_bytes = 1}).find("the workspace has 1"),
            std::string::npos);
}

TEST(TangentsAreRefused, ByPlansThatMoveTokens) {
  const auto place = [](std::int64_t token) { return token * 37 % 256; };
  const Mask mask = from_predicate(
      {1, 1, 256, 256}, [=](auto, auto, auto row, auto column) { return std::abs(place(row) - place(column)) < 5; });
  const Problem p = check::problem_of({1, 1, 1, 1, 16, 16}, mask.shape());
  const Plan planned = plan(mask, p, {.reorder = true});
  ASSERT_TRUE(planned.reordering()->gained);
  EXPECT_EQ(refusal(planned, Tangents(p).views()),
            "forward_tangents: the plan moves tokens; make the plan without `reorder`");
}

TEST(TangentsInGivenMemory, NeedWhatTheyAreSaidToNeed) {
  const Mask mask = masks::causal(200, 200);
  const Problem p = check::problem_of({1, 2, 1, 1, 64, 64}, mask.shape());
  const Plan planned = plan(mask, p);
  std::vector<std::byte> memory(tangents_workspace_bytes(planned, 1));
  Tangents given(p), own(p);
  forward(planned, given.tensors.forward());
  forward_tangents(planned, given.views(),
                   {.executor = &serial_executor(), .workspace = memory.data(), .workspace_bytes = memory.size()});
  own.run(planned);
  expect_same(given, own);
}

}  // namespace
}  // namespace flashmask
