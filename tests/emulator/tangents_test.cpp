// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/sm80/tangents/tangents_kernel.cuh"
#include "emulator/forward_call.h"
#include "flashmask/builders.h"
#include "kit/corpus.h"
#include "kit/tangent_call.h"

/// The kernels of tangents on the emulator, against the reference.
namespace flashmask::cuda::sm80 {
namespace {

using check::HostTensor;
using check::TangentCall;

template <class T>
using Of64 = TangentsShape<T, 64>;
template <class T>
using Of128 = TangentsShape<T, 128>;
template <class Shape>
using Changed = Changing<Dropping<Shape>>;

void fill(HostTensor& tensor, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.set(static_cast<std::int64_t>(i), static_cast<float>(values[i]));
}

/// Fills o and lse with the reference's.
void fill_outputs(TangentCall& call, const Mask& mask, const Problem& problem) {
  const check::ReferenceNumbers numbers(call.tensors, dropout_factors(problem, emulator::kDropoutState));
  const reference::Outputs outputs = reference::forward(problem, mask, numbers.inputs());
  fill(call.tensors.o, outputs.o);
  fill(call.tensors.lse, outputs.lse);
}

/// Runs the kernel of a shape. `given`: the call's tensors, of which some may be left out.
template <class Shape>
void run(const Mask& mask, const Problem& problem, TangentCall& call, const TangentTensors& given,
         const How& how = {}) {
  call.of_o.fill_nan();
  call.of_lse.fill_nan();
  const HostMask host_mask(mask, how.form);
  const HostMap map(mask, {Shape::kRows, Shape::kColumns}, MapSide::rows, how.visit,
                    static_cast<int>(problem.query_heads));
  const RowArguments rows = emulator::row_arguments(
      problem, host_mask, map, emulator::score_arguments(problem, how.place, given.sinks, given.alibi, given.bias));
  const TangentArguments arguments = tangent_arguments(rows, given);
  emulator::run({.blocks = static_cast<unsigned>(rows.items),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(TangentsMemory<Shape>),
                 .copies = how.copies},
                [&] { tangents_kernel<Shape>(arguments); });
}

void expect_accurate(const TangentCall& call, const reference::Tangents& expected, DType dtype) {
  EXPECT_LE(check::tangent_error(call.of_o, expected.o), check::tangent_tolerance(dtype)) << "o";
  EXPECT_LE(check::tangent_error(call.of_lse, expected.lse), check::tangent_tolerance(dtype)) << "lse";
}

std::vector<double> results(const TangentCall& call) {
  std::vector<double> all = call.of_o.values();
  const std::vector<double> lse = call.of_lse.values();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

/// Both forms and both kinds of copies, which give the same bits, as every tile does.
template <class Shape>
void expect_tangents(const Mask& mask, const Problem& problem, check::Sinks sinks = check::Sinks::none) {
  TangentCall call(problem, sinks);
  fill_outputs(call, mask, problem);
  run<Shape>(mask, problem, call, call.views(), {.form = MaskForm::bits, .copies = Copies::early});
  expect_accurate(call, call.expected(mask, emulator::kDropoutState), problem.dtype);
  if (mask.lowered().form() != MaskForm::intervals) return;
  const std::vector<double> from_bits = results(call);
  run<Shape>(mask, problem, call, call.views(), {.copies = Copies::late});
  EXPECT_EQ(results(call), from_bits);
}

/// Every mask of the corpus at one size, which masks take in turn, as they do shapes and dtypes.
TEST(EmulatedTangents, AreThoseOfTheReferenceOverTheCorpus) {
  std::size_t turn = 0;
  for (const corpus::Entry& entry : corpus::entries()) {
    const std::vector<corpus::Size>& sizes = corpus::awkward_sizes();
    for (std::size_t tries = 0; tries < sizes.size(); ++tries) {
      const corpus::Size size = sizes[++turn % sizes.size()];
      if (size.rows > 300 || !entry.accepts(size)) continue;
      const int heads = turn % 2 == 0 ? 1 : 2;
      SCOPED_TRACE(entry.name + " " + std::to_string(size.rows) + " x " + std::to_string(size.columns));
      const Mask mask = entry.build({size.rows, size.columns, heads});
      const Size of_call{static_cast<int>(size.rows), static_cast<int>(size.columns), 2, heads};
      expect_tangents<Of64<__half>>(mask, problem_for<Of64<__half>>(of_call));
      expect_tangents<Of64<__nv_bfloat16>>(mask, problem_for<Of64<__nv_bfloat16>>(of_call, 40, 56));
      break;
    }
  }
}

template <class Shape>
void expect_tangents_with_sinks() {
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{50, 130}, 190);  // the last rows see nothing
  for (const check::Sinks sinks : {check::Sinks::of_heads, check::Sinks::narrow_of_heads, check::Sinks::of_rows})
    expect_tangents<Shape>(mask, problem_for<Shape>({190, 190, 2, 1}), sinks);
}

TEST(EmulatedTangents, AreRightAt128WithSinks) {
  expect_tangents_with_sinks<Of128<__nv_bfloat16>>();
  expect_tangents_with_sinks<Of128<__half>>();
}

TEST(EmulatedTangents, PadSmallerHeads) {
  for (const int head_dim : {8, 72, 120})
    expect_tangents<Of128<__half>>(masks::causal(70, 90), problem_for<Of128<__half>>({70, 90}, head_dim, 104));
}

/// More tiles than a block finds at first, for which other rows find their references later.
TEST(EmulatedTangents, FindReferencesInLaterTiles) {
  const Mask mask = from_predicate({1, 1, 140, 4500}, [](auto, auto, auto row, auto column) {
    return column >= row * 20 && column < row * 20 + 1700;
  });
  expect_tangents<Of64<__half>>(mask, problem_for<Of64<__half>>({140, 4500}));
}

TEST(EmulatedTangents, VisitingEveryTileGivesTheSameBits) {
  using Shape = Of64<__nv_bfloat16>;
  const Problem problem = problem_for<Shape>({150, 330, 2, 2});
  const Mask mask = masks::sliding_window(150, 330, 60);
  TangentCall call(problem);
  fill_outputs(call, mask, problem);
  run<Shape>(mask, problem, call, call.views());
  const std::vector<double> skipping = results(call);
  run<Shape>(mask, problem, call, call.views(), {.visit = Visit::all});
  EXPECT_EQ(results(call), skipping);
}

/// Σ p Ṡ v − μ o would be a difference of numbers 1,000 times as large.
TEST(EmulatedTangents, LoseNoDigitsWhereScoresMoveTogether) {
  using Shape = Of64<__nv_bfloat16>;
  const Problem problem = problem_for<Shape>({200, 200});
  const Mask mask = masks::causal(200, 200);
  TangentCall call(problem);
  for (std::int64_t i = 0; i < call.tensors.q.size(); i += 64) {
    call.tensors.q.set(i, 8);
    call.of_k.set(i, 1024);
  }
  fill_outputs(call, mask, problem);
  run<Shape>(mask, problem, call, call.views());
  const reference::Tangents expected = call.expected(mask, emulator::kDropoutState);
  for (std::int64_t i = 0; i < call.of_o.size(); ++i)
    ASSERT_NEAR(call.of_o.at(i), expected.o[static_cast<std::size_t>(i)], 0.1);
  for (std::int64_t i = 0; i < call.of_lse.size(); ++i)
    ASSERT_NEAR(call.of_lse.at(i) / expected.lse[static_cast<std::size_t>(i)], 1, 1e-5);
}

/// What of q, k and v has a tangent; the others have none.
TEST(EmulatedTangents, OfAbsentTangentsAreThoseOfZeros) {
  using Shape = Of64<__half>;
  const Problem problem = problem_for<Shape>({150, 203, 2, 1});
  const Mask mask = masks::sliding_window(150, 203, 90);
  for (const std::array<bool, 3>& has :
       {std::array{true, false, false}, {false, true, false}, {false, false, true}, {true, false, true}}) {
    TangentCall call(problem);
    fill_outputs(call, mask, problem);
    TangentTensors given = call.views();
    TensorView* const views[] = {&given.tangent_q, &given.tangent_k, &given.tangent_v};
    HostTensor* const tensors[] = {&call.of_q, &call.of_k, &call.of_v};
    for (int i = 0; i < 3; ++i) {
      if (has[static_cast<std::size_t>(i)]) continue;
      *views[i] = {};
      for (std::int64_t at = 0; at < tensors[i]->size(); ++at) tensors[i]->set(at, 0);
    }
    run<Shape>(mask, problem, call, given);
    expect_accurate(call, call.expected(mask, emulator::kDropoutState), problem.dtype);
  }
}

/// Keys that the mask hides, in tiles that are visited, may be anything.
TEST(EmulatedTangents, UseNothingOfHiddenKeys) {
  using Shape = Of64<__half>;
  const Problem problem = problem_for<Shape>({150, 150});
  const Mask mask = from_predicate({1, 1, 150, 150}, [](auto, auto, auto, auto column) { return column < 70; });
  TangentCall call(problem);
  fill_outputs(call, mask, problem);
  run<Shape>(mask, problem, call, call.views());
  const std::vector<double> clean = results(call);
  for (std::int64_t i = 100 * 64; i < 120 * 64; ++i) {
    call.tensors.k.set(i, NAN);
    call.of_k.set(i, NAN);
  }
  run<Shape>(mask, problem, call, call.views());
  EXPECT_EQ(results(call), clean);
}

/// Without and with dropout in turn.
template <class Shape>
void expect_changed_tangents() {
  Problem problem = problem_for<Shape>({90, 150, 2, 1, 2});
  const Mask mask = masks::sliding_window(90, 150, 90);
  for (const ScoreChange& change :
       {scores::softcap(2), scores::alibi(), scores::softcap(2) | scores::alibi(), scores::softcap(2) | scores::bias(),
        scores::softcap(2) | scores::distance(), ScoreChange()}) {
    problem.change = change;
    expect_tangents<Changed<Shape>>(mask, problem, check::Sinks::of_heads);
    problem.dropout = problem.dropout > 0 ? 0 : 0.3;
  }
}

TEST(EmulatedTangents, FollowChangesOfScoresAndDropout) {
  expect_changed_tangents<Of64<__nv_bfloat16>>();
  expect_changed_tangents<Of128<__half>>();
}

}  // namespace
}  // namespace flashmask::cuda::sm80
