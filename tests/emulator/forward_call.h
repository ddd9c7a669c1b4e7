// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "cuda/compile/change_text.h"
#include "cuda/sm80/forward/forward_arguments.h"
#include "cuda/sm80/forward/forward_kernel.cuh"
#include "emulator/host_plan.h"
#include "flashmask/dropout.h"
#include "flashmask/reference.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"
#include "kit/reference_numbers.h"

/// Calls of a forward on the emulator, held against the reference.
namespace flashmask::cuda::sm80 {

using check::AttentionTensors;
using emulator::Copies;
using emulator::HostMap;
using emulator::HostMask;

/// The kernel of a shape.
template <class Shape>
struct ForwardOf {
  using Memory = std::conditional_t<StagesBias<Shape>, BiasedForwardMemory<Shape>, ForwardMemory<Shape>>;
  static void run(const ForwardArguments& arguments) { forward_kernel<Shape>(arguments); }
};

struct Size {
  int rows, columns;
  int query_heads = 1, kv_heads = 1;
  int batch = 1;
};

template <class Shape>
Problem problem_for(const Size& size, int head_dim = Shape::kHeadDim, int value_dim = Shape::kValueDim) {
  Problem problem;
  problem.batch = size.batch;
  problem.query_length = size.rows;
  problem.key_length = size.columns;
  problem.query_heads = size.query_heads;
  problem.kv_heads = size.kv_heads;
  problem.head_dim = head_dim;
  problem.value_dim = value_dim;
  problem.dtype = std::is_same_v<typename Shape::Element, __half> ? DType::f16 : DType::bf16;
  return problem;
}

struct How {
  MaskForm form = MaskForm::intervals;
  Copies copies = Copies::either;
  Visit visit = Visit::active;
  std::span<const std::int32_t> place = {};  // of dropout
  int blocks = 0;                            // that take items until there are none left; 0: one an item
  TensorView bias = {};                      // in place of the tensors' own
};

/// Prepares a call of a kernel of row tiles in the host's memory, and calls body(row arguments, tensors, mask).
template <class Shape, class Body>
void with_rows(const Mask& mask, const Problem& problem, AttentionTensors& tensors, const How& how, const Body& body) {
  tensors.clear_outputs();
  const HostMask host_mask(mask, how.form);
  const HostMap map(mask, {Shape::kRows, Shape::kColumns}, MapSide::rows, how.visit,
                    static_cast<int>(problem.query_heads));
  ForwardTensors given = tensors.forward();
  if (KeepsMaxScores<Shape>) given.max_scores = tensors.max_scores.view();
  if (how.bias.present()) given.bias.values = how.bias;
  body(emulator::row_arguments(problem, host_mask, map,
                               emulator::score_arguments(problem, how.place, given.sinks, given.alibi, given.bias)),
       given, host_mask);
}

template <class Shape>
void attend(const Mask& mask, const Problem& problem, AttentionTensors& tensors, const How& how) {
  with_rows<Shape>(mask, problem, tensors, how, [&](RowArguments rows, const auto& given, const auto& host_mask) {
    int next_item = 0;
    if (how.blocks != 0) rows.next_item = &next_item;
    ForwardArguments arguments = forward_arguments(rows, given);
    if (Changes<Shape>) arguments.change = compile::change_operands(problem, compile::change_tensors(given));
    emulator::Launch launch{.blocks = static_cast<unsigned>(how.blocks != 0 ? how.blocks : rows.items),
                            .threads = Shape::kThreads,
                            .shared_bytes = sizeof(typename ForwardOf<Shape>::Memory),
                            .copies = how.copies};
    if (how.form == MaskForm::intervals) {
      launch.readable = {emulator::range_of(given.q), emulator::range_of(given.k), emulator::range_of(given.v)};
      if (tensors.bias.has_value()) launch.readable.push_back(emulator::range_of(tensors.bias->view()));
      const auto bytes = static_cast<std::size_t>(mask.shape().batch * mask.shape().heads * mask.shape().columns) * 4;
      for (const std::int32_t* ends : host_mask.view().intervals) {
        const auto* begin = reinterpret_cast<const std::byte*>(ends);
        launch.readable.push_back({begin, begin + bytes});
      }
    }
    emulator::run(launch, [&] { ForwardOf<Shape>::run(arguments); });
  });
}

inline std::vector<double> results(const AttentionTensors& tensors) {
  std::vector<double> all = tensors.o.values();
  const std::vector<double> lse = tensors.lse.values();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

inline void expect_accurate(const Mask& mask, const Problem& problem, const AttentionTensors& tensors,
                            std::span<const std::int32_t> place = {}, bool max_scores = false) {
  const check::ReferenceNumbers numbers(tensors, dropout_factors(problem, emulator::kDropoutState, place));
  const reference::Inputs inputs = numbers.inputs();
  const reference::Outputs expected = reference::forward(problem, mask, inputs);
  const auto naive = check::naive::attend(problem, mask, inputs, std::vector<double>(expected.o.size(), 0), {});
  check::ErrorBound bound(problem.dtype);
  bound.add(tensors.o.values(), expected.o, naive.o);
  EXPECT_LE(bound.result().ratio(), 1);
  const auto expect_rows = [&](const char* name, const check::HostTensor& found, const std::vector<double>& wanted) {
    for (std::int64_t i = 0; i < found.size(); ++i)
      ASSERT_LE(check::compare_lse(problem.dtype, found.at(i), wanted[static_cast<std::size_t>(i)]).ratio(), 1)
          << name << " " << i;
  };
  expect_rows("lse", tensors.lse, expected.lse);
  if (max_scores) expect_rows("max_scores", tensors.max_scores, expected.max_scores);
}

/// Both forms and both kinds of copies, which give the same bits.
template <class Shape>
void expect_right(const Mask& mask, const Problem& problem, check::Sinks sinks = check::Sinks::none) {
  AttentionTensors tensors(problem, 7, sinks);
  attend<Shape>(mask, problem, tensors, {.form = MaskForm::bits, .copies = Copies::early});
  expect_accurate(mask, problem, tensors, {}, KeepsMaxScores<Shape>);
  if (mask.lowered().form() != MaskForm::intervals) return;
  const std::vector<double> from_bits = results(tensors);
  attend<Shape>(mask, problem, tensors, {.copies = Copies::late});
  EXPECT_EQ(results(tensors), from_bits);
}

}  // namespace flashmask::cuda::sm80
