// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/common/backward_workspace.h"
#include "emulator/host_plan.h"
#include "flashmask/builders.h"
#include "flashmask/dropout.h"
#include "flashmask/reference.h"
#include "kit/error_bound.h"
#include "kit/host_tensor.h"
#include "kit/naive_attention.h"
#include "kit/reference_numbers.h"

/// Calls of a backward on the emulator, and what is right.
namespace flashmask::cuda::sm80 {

using check::HostTensor;
using emulator::Copies;
using emulator::HostMap;
using emulator::HostMask;

/// What a test asks for.
struct Case {
  std::string name;
  Mask mask;
  MaskForm form = MaskForm::intervals;
  Copies copies = Copies::either;
  Visit visit = Visit::active;
  std::int64_t query_heads = 2, kv_heads = 1, head_dim = 0, value_dim = 0;  // 0: the kernel's
  double dropout = 0;
  bool part = false;  // of a larger problem, whose decisions it takes
  ScoreChange change = {};
  std::vector<std::int64_t> bias_shape = {};  // empty: one that AttentionTensors chooses
};

/// A call's tensors, what is right, and what the launch of row statistics makes.
template <class T, int kHeadDim>
struct Call {
  Call(const Case& with, unsigned seed)
      : problem(problem_of(with)),
        tensors(problem, seed),
        mask(with.mask, with.form),
        mask_lists(with.mask.shape().batch * with.mask.shape().heads) {
    if (!with.bias_shape.empty()) choose_bias(with.bias_shape);
    const std::vector<double> grad_o = tensors.grad_o.values(), grad_lse = tensors.grad_lse.values();
    if (with.part) place = emulator::some_dropout_place(problem, kHeadDim % 96 == 0 ? 384 : 128);
    const check::ReferenceNumbers numbers(tensors, dropout_factors(problem, emulator::kDropoutState, place));
    const reference::Inputs inputs = numbers.inputs();
    const reference::Outputs outputs = reference::forward(problem, with.mask, inputs);
    fill(tensors.o, outputs.o);
    fill(tensors.lse, outputs.lse);
    expected = reference::backward(problem, with.mask, inputs, grad_o, grad_lse);
    naive = check::naive::attend(problem, with.mask, inputs, grad_o, grad_lse);
    padded = (problem.query_length + kPaddedRows - 1) / kPaddedRows * kPaddedRows;
    const auto heads = static_cast<std::size_t>(problem.batch * problem.query_heads);
    lse_log2.assign(heads * static_cast<std::size_t>(padded), INFINITY);
    dot.assign(lse_log2.size(), 0);
    sums.assign(lse_log2.size() * kHeadDim, 0);
    for (std::int64_t batch = 0; batch < problem.batch; ++batch)
      for (std::int64_t head = 0; head < problem.query_heads; ++head)
        for (std::int64_t row = 0; row < problem.query_length; ++row)
          add_row(outputs, grad_o, grad_lse, batch, head, row);
  }

  static void fill(HostTensor& tensor, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      tensor.set(static_cast<std::int64_t>(i), static_cast<float>(values[i]));
  }

  /// Some are far below the others or −∞.
  void choose_bias(const std::vector<std::int64_t>& shape) {
    tensors.bias.emplace(problem.dtype, shape);
    tensors.grad_bias.emplace(problem.dtype, shape);
    for (std::int64_t i = 0; i < tensors.bias->size(); ++i)
      tensors.bias->set(i, i % 13 == 5 ? -INFINITY : i % 17 == 9 ? -1e30F : static_cast<float>(i * 37 % 64) / 32 - 1);
    tensors.bias_origin = shape[3] / 2;
  }

  static Problem problem_of(const Case& with) {
    Problem problem;
    problem.batch = 2;
    problem.query_length = with.mask.shape().rows;
    problem.key_length = with.mask.shape().columns;
    problem.query_heads = with.query_heads;
    problem.kv_heads = with.kv_heads;
    problem.head_dim = with.head_dim == 0 ? kHeadDim : with.head_dim;
    problem.value_dim = with.value_dim == 0 ? kHeadDim : with.value_dim;
    problem.dtype = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
    problem.dropout = with.dropout;
    problem.change = with.change;
    return problem;
  }

  void add_row(const reference::Outputs& outputs, const std::vector<double>& grad_o,
               const std::vector<double>& grad_lse, std::int64_t batch, std::int64_t head, std::int64_t row) {
    const std::int64_t flat_head = batch * problem.query_heads + head;
    const auto of_lse = static_cast<std::size_t>(flat_head * problem.query_length + row);
    if (outputs.lse[of_lse] == -INFINITY) return;
    const auto at = static_cast<std::size_t>(flat_head * padded + row);
    const auto of_o = static_cast<std::size_t>(((batch * problem.query_length + row) * problem.query_heads + head) *
                                               problem.value_dim);
    double sum = -grad_lse[of_lse];
    for (std::size_t i = 0; i < static_cast<std::size_t>(problem.value_dim); ++i)
      sum += outputs.o[of_o + i] * grad_o[of_o + i];
    lse_log2[at] = static_cast<float>(outputs.lse[of_lse] * 1.44269504088896);
    dot[at] = static_cast<float>(sum);
  }

  ScoreArguments score() const {
    return emulator::score_arguments(problem, place, {}, tensors.backward().alibi, tensors.backward().bias);
  }

  BackwardStatistics statistics() { return {lse_log2.data(), dot.data(), padded}; }

  std::vector<std::array<const std::byte*, 2>> readable() const {
    const auto range = [](const auto* begin, std::size_t count) {
      const auto* bytes = reinterpret_cast<const std::byte*>(begin);
      return std::array{bytes, bytes + count * sizeof(*begin)};
    };
    std::vector ranges = {emulator::range_of(tensors.q.view()),    emulator::range_of(tensors.k.view()),
                          emulator::range_of(tensors.v.view()),    emulator::range_of(tensors.grad_o.view()),
                          range(lse_log2.data(), lse_log2.size()), range(dot.data(), dot.size())};
    const cuda::MaskView& view = mask.view();
    for (const std::int32_t* ends : view.intervals)
      if (ends != nullptr) ranges.push_back(range(ends, static_cast<std::size_t>(mask_lists * view.columns)));
    if (view.cells.bits.words != nullptr)
      ranges.push_back(range(view.cells.bits.words, (view.cells.bits.stored + 1UL) * DeviceBits::kCellWords));
    return ranges;
  }

  void expect_accurate(const std::string& what, const HostTensor& found, const std::vector<double>& reference,
                       const std::vector<double>& rounded) const {
    check::ErrorBound bound(problem.dtype);
    bound.add(found.values(), reference, rounded);
    EXPECT_LE(bound.result().ratio(), 1) << what;
  }
  void expect_accurate(const std::string& name) const {
    expect_accurate(name + ", grad_q", tensors.grad_q, expected.q, naive.grad_q);
    expect_accurate(name + ", grad_k", tensors.grad_k, expected.k, naive.grad_k);
    expect_accurate(name + ", grad_v", tensors.grad_v, expected.v, naive.grad_v);
  }

  Problem problem;
  std::vector<std::int32_t> place;
  check::AttentionTensors tensors;
  HostMask mask;
  std::int64_t mask_lists;
  reference::Gradients expected;
  check::naive::Results naive;
  std::int64_t padded;
  std::vector<float> lse_log2, dot, sums;
};

/// Of keys that token i no longer sees after `steps[i]` further ones, for each of two heads.
inline Mask set_a_head(std::int64_t tokens) {
  std::vector<std::int64_t> evicted;
  for (std::int64_t i = 0; i < 2 * tokens; ++i) evicted.push_back(std::min(tokens, i % tokens + 1 + i * 37 % 90));
  return masks::random_eviction(tokens, evicted, 2);
}

inline HostTensor like(const HostTensor& tensor, DType dtype) {
  return {dtype, {tensor.shape(0), tensor.shape(1), tensor.shape(2), tensor.shape(3)}};
}

/// All of their numbers.
inline void expect_that_it_rounds_to(const HostTensor& wide, const HostTensor& narrow) {
  HostTensor rounded = like(narrow, narrow.view().dtype);
  bool same = true;
  for (std::int64_t i = 0; i < wide.size(); ++i) {
    rounded.set(i, wide.at(i));
    same = same && rounded.at(i) == wide.at(i);
    ASSERT_EQ(rounded.at(i), narrow.at(i)) << i;
  }
  EXPECT_FALSE(same) << "these are 16-bit numbers";
}

}  // namespace flashmask::cuda::sm80
