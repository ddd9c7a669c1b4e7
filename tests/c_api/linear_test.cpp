// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <string>

#include "c_api/handles.h"
#include "flashmask/builders.h"
#include "flashmask/linear_attention.h"
#include "kit/linear_tensors.h"

namespace flashmask::c_api {
namespace {

flashmask_tensor to_c(const TensorView& view) {
  flashmask_tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.rank = view.rank;
  std::ranges::copy(view.shape, tensor.shape);
  std::ranges::copy(view.strides, tensor.strides);
  return tensor;
}

bool same(const check::HostTensor& a, const check::HostTensor& b) {
  return std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.size()) * sizeof(float)) == 0;
}

TEST(LinearCalls, AreThoseOfTheLibrary) {
  LinearProblem p;
  p.length = 90;
  p.heads = 2;
  p.key_dim = 20;
  p.value_dim = 12;
  p.normalize = true;
  flashmask_linear_problem given = FLASHMASK_INIT(flashmask_linear_problem);
  given.batch = 1, given.length = 90, given.heads = 2, given.key_heads = 1;
  given.key_dim = 20, given.value_dim = 12, given.normalize = 1;
  const auto mask = make(flashmask_mask_causal, 90, 90);
  flashmask_linear_plan* plan = nullptr;
  ASSERT_EQ(flashmask_linear_plan_create(mask.get(), &given, nullptr, &plan), FLASHMASK_OK) << flashmask_last_error();
  flashmask_linear_plan_view view = FLASHMASK_INIT(flashmask_linear_plan_view);
  ASSERT_EQ(flashmask_linear_plan_get(plan, &view), FLASHMASK_OK);
  const LinearPlan own = linear_plan(masks::causal(90, 90), p);
  EXPECT_EQ(view.nodes, 1);
  EXPECT_EQ(view.roots, 1);
  EXPECT_EQ(view.kernel, own.kernel());

  const check::LinearTensors a(own, 3, check::mild_gates(), true), b(own, 3, check::mild_gates(), true);
  linear_forward(own, a.forward());
  linear_backward(own, a.backward());
  const LinearForwardTensors f = b.forward();
  const flashmask_linear_forward_tensors forward = {sizeof(forward),
                                                    to_c(f.q),
                                                    to_c(f.k),
                                                    to_c(f.v),
                                                    to_c(f.log_forget),
                                                    to_c(f.log_input),
                                                    to_c(f.initial.state),
                                                    to_c(f.initial.normalizer),
                                                    to_c(f.initial.log_scale),
                                                    to_c(f.o),
                                                    to_c(f.final.state),
                                                    to_c(f.final.normalizer),
                                                    to_c(f.final.log_scale)};
  int stream = 0;
  flashmask_execution with_stream = FLASHMASK_INIT(flashmask_execution);
  with_stream.stream = &stream;
  expect_refused(flashmask_linear_forward(plan, &forward, &with_stream), FLASHMASK_INVALID_ARGUMENT,
                 "execution.stream");
  ASSERT_EQ(flashmask_linear_forward(plan, &forward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  const LinearBackwardTensors g = b.backward();
  const flashmask_linear_backward_tensors backward = {sizeof(backward),
                                                      to_c(g.q),
                                                      to_c(g.k),
                                                      to_c(g.v),
                                                      to_c(g.log_forget),
                                                      to_c(g.log_input),
                                                      to_c(g.initial.state),
                                                      to_c(g.initial.normalizer),
                                                      to_c(g.initial.log_scale),
                                                      to_c(g.o),
                                                      to_c(g.grad_o),
                                                      to_c(g.grad_final.state),
                                                      to_c(g.grad_final.normalizer),
                                                      to_c(g.grad_q),
                                                      to_c(g.grad_k),
                                                      to_c(g.grad_v),
                                                      to_c(g.grad_log_forget),
                                                      to_c(g.grad_log_input),
                                                      to_c(g.grad_initial.state),
                                                      to_c(g.grad_initial.normalizer)};
  expect_refused(flashmask_linear_backward(plan, &backward, &with_stream), FLASHMASK_INVALID_ARGUMENT,
                 "execution.stream");
  ASSERT_EQ(flashmask_linear_backward(plan, &backward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_TRUE(same(a.o, b.o));
  EXPECT_TRUE(same(a.final->state, b.final->state));
  EXPECT_TRUE(same(*a.final->normalizer, *b.final->normalizer));
  EXPECT_TRUE(same(*a.final->log_scale, *b.final->log_scale));
  EXPECT_TRUE(same(a.grad_q, b.grad_q));
  EXPECT_TRUE(same(a.grad_k, b.grad_k));
  EXPECT_TRUE(same(a.grad_v, b.grad_v));
  EXPECT_TRUE(same(*a.grad_log_forget, *b.grad_log_forget));
  EXPECT_TRUE(same(*a.grad_log_input, *b.grad_log_input));
  EXPECT_TRUE(same(a.grad_initial->state, b.grad_initial->state));
  EXPECT_TRUE(same(*a.grad_initial->normalizer, *b.grad_initial->normalizer));
  flashmask_linear_plan_destroy(plan);
}

TEST(LinearCalls, SayWhatIsMissing) {
  flashmask_linear_problem given = FLASHMASK_INIT(flashmask_linear_problem);
  given.batch = given.heads = given.key_heads = given.key_dim = given.value_dim = 1;
  given.length = 9;
  const auto mask = make(flashmask_mask_sliding_window, 9, 9, 3);
  flashmask_linear_plan* plan = nullptr;
  EXPECT_EQ(flashmask_linear_plan_create(mask.get(), &given, nullptr, &plan), FLASHMASK_INVALID_ARGUMENT);
  EXPECT_NE(std::string(flashmask_last_error()).find("docs/linear.md"), std::string::npos);
  given.batch = std::int64_t{1} << 40;
  given.length = 0;
  flashmask_reference_linear_tensors none = FLASHMASK_INIT(flashmask_reference_linear_tensors);
  expect_refused(flashmask_reference_linear_forward(make(flashmask_mask_causal, 0, 0).get(), &given, &none),
                 FLASHMASK_INVALID_ARGUMENT, "batch is 1099511627776");
  given.batch = 1;
  given.length = 9;
  given.device_type = 1;
  EXPECT_EQ(flashmask_linear_plan_create(mask.get(), &given, nullptr, &plan), FLASHMASK_UNSUPPORTED);
  EXPECT_EQ(flashmask_linear_forward(nullptr, nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT);
  flashmask_linear_plan_destroy(nullptr);
}

}  // namespace
}  // namespace flashmask::c_api
