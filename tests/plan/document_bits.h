// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "kit/host_tensor.h"

/// One document in the tensors of two calls: what it is given there, and whether both give it the same bits.
namespace flashmask::test {

/// Where a document begins in the tensors of a call.
struct Place {
  std::int64_t batch = 0, row = 0, column = 0;
};

/// A document's rows, or columns, in a tensor (batch, sequence, heads, dim), or in lse (batch, heads, sequence).
struct Part {
  const check::HostTensor& tensor;
  std::int64_t batch, first;

  bool is_lse() const { return tensor.view().rank == 3; }
  std::int64_t heads() const { return tensor.shape(is_lse() ? 1 : 2); }
  std::int64_t width() const { return is_lse() ? 1 : tensor.shape(3); }
  std::int64_t index(std::int64_t token, std::int64_t head) const {
    if (is_lse()) return (batch * heads() + head) * tensor.shape(2) + first + token;
    return ((batch * tensor.shape(1) + first + token) * heads() + head) * width();
  }
};

/// Calls body(index in one tensor, index in the other) for each value of `tokens` tokens.
template <class Body>
void for_each_value(const Part& one, const Part& other, std::int64_t tokens, const Body& body) {
  for (std::int64_t token = 0; token < tokens; ++token)
    for (std::int64_t head = 0; head < one.heads(); ++head)
      for (std::int64_t c = 0; c < one.width(); ++c) body(one.index(token, head) + c, other.index(token, head) + c);
}

inline void copy(const Part& from, check::HostTensor& to, std::int64_t batch, std::int64_t first, std::int64_t tokens) {
  for_each_value(from, {to, batch, first}, tokens,
                 [&](std::int64_t i, std::int64_t j) { to.set(j, from.tensor.at(i)); });
}

inline void copy_inputs(const check::AttentionTensors& from, const Place& at, check::AttentionTensors& to,
                        const Place& there, std::int64_t rows, std::int64_t columns) {
  copy({from.q, at.batch, at.row}, to.q, there.batch, there.row, rows);
  copy({from.grad_o, at.batch, at.row}, to.grad_o, there.batch, there.row, rows);
  copy({from.grad_lse, at.batch, at.row}, to.grad_lse, there.batch, there.row, rows);
  copy({from.k, at.batch, at.column}, to.k, there.batch, there.column, columns);
  copy({from.v, at.batch, at.column}, to.v, there.batch, there.column, columns);
}

inline void expect_same(const char* name, const Part& one, const Part& other, std::int64_t tokens) {
  std::int64_t different = 0;
  for_each_value(one, other, tokens, [&](std::int64_t i, std::int64_t j) {
    different += std::bit_cast<std::uint32_t>(one.tensor.at(i)) != std::bit_cast<std::uint32_t>(other.tensor.at(j));
  });
  EXPECT_EQ(different, 0) << name << ": values that differ";
}

inline void expect_same_documents(const check::AttentionTensors& one, const Place& at,
                                  const check::AttentionTensors& other, const Place& there, std::int64_t rows,
                                  std::int64_t columns) {
  expect_same("o", {one.o, at.batch, at.row}, {other.o, there.batch, there.row}, rows);
  expect_same("lse", {one.lse, at.batch, at.row}, {other.lse, there.batch, there.row}, rows);
  expect_same("grad_q", {one.grad_q, at.batch, at.row}, {other.grad_q, there.batch, there.row}, rows);
  expect_same("grad_k", {one.grad_k, at.batch, at.column}, {other.grad_k, there.batch, there.column}, columns);
  expect_same("grad_v", {one.grad_v, at.batch, at.column}, {other.grad_v, there.batch, there.column}, columns);
}

/// The view of the first tokens of a tensor (batch, sequence, heads, dim), or of lse, that holds more.
inline TensorView first_tokens(TensorView view, std::int64_t tokens) {
  view.shape[view.rank == 3 ? 2 : 1] = tokens;
  return view;
}

/// Expects that of a tensor of NaN the first tokens were written, and no others.
inline void expect_written_until(const check::HostTensor& output, std::int64_t tokens) {
  const Part part{output, 0, 0};
  std::int64_t wrong = 0;
  for_each_value(part, part, output.shape(part.is_lse() ? 2 : 1), [&](std::int64_t i, std::int64_t) {
    const std::int64_t token = part.is_lse() ? i % output.shape(2) : i / (part.heads() * part.width());
    wrong += std::isnan(output.at(i)) != (token >= tokens);
  });
  EXPECT_EQ(wrong, 0) << "values written behind the last document, or not written before its end";
}

}  // namespace flashmask::test
