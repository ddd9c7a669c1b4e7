// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "cpu/kernels.h"
#include "kit/host_tensor.h"
#include "kit/rounding.h"

namespace flashmask::test {

/// A tensor of the same values inside a larger buffer: head-major, with a gap after every row that holds a canary.
class GappyTensor {
 public:
  static constexpr std::int64_t kGap = 5;
  static constexpr float kCanary = 12345.0F;

  explicit GappyTensor(const check::HostTensor& dense)
      : dense_(dense),
        buffer_(dense.view().dtype, {dense.shape(0), dense.shape(2), dense.shape(1), dense.shape(3) + kGap}) {
    for (std::int64_t i = 0; i < buffer_.size(); ++i) buffer_.set(i, kCanary);
    each([&](std::int64_t from, std::int64_t to) { buffer_.set(to, dense_.at(from)); });
  }

  /// (batch, sequence, heads, dim) over the head-major buffer.
  TensorView view() const {
    TensorView view = dense_.view();
    view.data = buffer_.view().data;
    view.strides = {buffer_.stride(0), buffer_.stride(2), buffer_.stride(1), 1};
    return view;
  }

  void expect_values_of(const check::HostTensor& expected) const {
    each([&](std::int64_t from, std::int64_t to) { ASSERT_EQ(expected.at(from), buffer_.at(to)); });
  }

  void expect_canaries() const {
    const float canary = check::round_to(buffer_.view().dtype, kCanary);
    const std::int64_t row = dense_.shape(3) + kGap;
    for (std::int64_t i = 0; i < buffer_.size(); ++i)
      ASSERT_TRUE(i % row < dense_.shape(3) || buffer_.at(i) == canary) << "written outside at " << i;
  }

 private:
  template <class Body>
  void each(const Body& body) const {
    const TensorView view = this->view();
    std::int64_t from = 0;
    for (std::int64_t b = 0; b < view.shape[0]; ++b)
      for (std::int64_t s = 0; s < view.shape[1]; ++s)
        for (std::int64_t h = 0; h < view.shape[2]; ++h)
          for (std::int64_t d = 0; d < view.shape[3]; ++d, ++from)
            body(from, b * view.strides[0] + s * view.strides[1] + h * view.strides[2] + d);
  }

  const check::HostTensor& dense_;
  check::HostTensor buffer_;
};

/// Runs a plan forward and backward in gappy memory: the results are those of `dense` to the bit, which the plan gave
/// already, and nothing is written between the rows.
inline void expect_same_in_gappy_memory(const Plan& planned, const check::AttentionTensors& dense) {
  const check::AttentionTensors blank(planned.problem(), 1);
  const GappyTensor q(dense.q), k(dense.k), v(dense.v), grad_o(dense.grad_o);
  const GappyTensor o(blank.o), grad_q(blank.grad_q), grad_k(blank.grad_k), grad_v(blank.grad_v);
  forward(planned, {q.view(), k.view(), v.view(), o.view(), blank.lse.view()});
  backward(planned, {q.view(), k.view(), v.view(), o.view(), blank.lse.view(), grad_o.view(), dense.grad_lse.view(),
                     grad_q.view(), grad_k.view(), grad_v.view()});
  EXPECT_TRUE(same_bits(blank.lse, dense.lse)) << "lse";
  o.expect_values_of(dense.o);
  grad_q.expect_values_of(dense.grad_q);
  grad_k.expect_values_of(dense.grad_k);
  grad_v.expect_values_of(dense.grad_v);
  for (const GappyTensor* output : {&o, &grad_q, &grad_k, &grad_v}) output->expect_canaries();
}

}  // namespace flashmask::test
