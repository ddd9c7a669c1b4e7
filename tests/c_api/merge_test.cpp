// SPDX-License-Identifier: Apache-2.0
#include "flashmask/merge.h"

#include <array>
#include <limits>
#include <vector>

#include "c_api/handles.h"
#include "kit/host_tensor.h"

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

/// o1, lse1, o2, lse2, o, lse, grad_o, grad_lse, grad_o1, grad_lse1, grad_o2, grad_lse2, and of a third part o3, lse3,
/// grad_o3, grad_lse3.
struct Tensors {
  std::vector<check::HostTensor> all;

  Tensors() {
    check::RandomNumbers random(9);
    for (int i = 0; i < 16; ++i) {
      if (i % 2 == 0) {
        all.emplace_back(DType::f32, std::vector<std::int64_t>{2, 33, 3, 20});
      } else {
        all.emplace_back(DType::f32, std::vector<std::int64_t>{2, 3, 33});
      }
      if (i < 4 || i == 6 || i == 7 || i == 12 || i == 13) all.back().fill_normal(random);
    }
  }
  flashmask_tensor c(std::size_t i) const { return to_c(all[i].view()); }
  TensorView cpp(std::size_t i) const { return all[i].view(); }

  flashmask_merge_tensors c_forward() const {
    return {sizeof(flashmask_merge_tensors), c(0), c(1), c(2), c(3), c(4), c(5), nullptr, 0};
  }
  flashmask_merge_gradients c_backward(bool with_grad_lse) const {
    return {sizeof(flashmask_merge_gradients),         c(0), c(1), c(2),  c(3),  c(4),    c(5), c(6),
            with_grad_lse ? c(7) : flashmask_tensor{}, c(8), c(9), c(10), c(11), nullptr, 0};
  }
  MergeTensors cpp_forward() const { return {{{cpp(0), cpp(1)}, {cpp(2), cpp(3)}}, cpp(4), cpp(5)}; }
  MergeGradients cpp_backward(bool with_grad_lse) const {
    return {{{cpp(0), cpp(1), cpp(8), cpp(9)}, {cpp(2), cpp(3), cpp(10), cpp(11)}},
            cpp(4),
            cpp(5),
            cpp(6),
            with_grad_lse ? cpp(7) : TensorView{}};
  }
};

TEST(MergeCalls, AreThoseOfTheLibrary) {
  for (const bool with_grad_lse : {false, true}) {
    const Tensors in_c;
    const Tensors in_cpp;
    const flashmask_merge_tensors forward = in_c.c_forward();
    ASSERT_EQ(flashmask_merge(&forward, nullptr), FLASHMASK_OK) << flashmask_last_error();
    const flashmask_merge_gradients backward = in_c.c_backward(with_grad_lse);
    ASSERT_EQ(flashmask_merge_backward(&backward, nullptr), FLASHMASK_OK) << flashmask_last_error();
    merge(in_cpp.cpp_forward());
    merge_backward(in_cpp.cpp_backward(with_grad_lse));
    for (const std::size_t output : {4, 5, 8, 9, 10, 11})
      EXPECT_EQ(in_c.all[output].values(), in_cpp.all[output].values()) << output;
  }
}

TEST(MergeCalls, TakeMorePartsThanTwo) {
  const Tensors in_c;
  const Tensors in_cpp;
  const std::vector<flashmask_tensor> third = {in_c.c(12), in_c.c(13), in_c.c(14), in_c.c(15)};
  flashmask_merge_tensors forward = in_c.c_forward();
  forward.more = third.data();
  forward.more_count = 1;
  ASSERT_EQ(flashmask_merge(&forward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  flashmask_merge_gradients backward = in_c.c_backward(true);
  backward.more = third.data();
  backward.more_count = 1;
  ASSERT_EQ(flashmask_merge_backward(&backward, nullptr), FLASHMASK_OK) << flashmask_last_error();
  MergeTensors forward_cpp = in_cpp.cpp_forward();
  forward_cpp.parts.push_back({in_cpp.cpp(12), in_cpp.cpp(13)});
  merge(forward_cpp);
  MergeGradients backward_cpp = in_cpp.cpp_backward(true);
  backward_cpp.parts.push_back({in_cpp.cpp(12), in_cpp.cpp(13), in_cpp.cpp(14), in_cpp.cpp(15)});
  merge_backward(backward_cpp);
  for (const std::size_t output : {4, 5, 8, 9, 10, 11, 14, 15})
    EXPECT_EQ(in_c.all[output].values(), in_cpp.all[output].values()) << output;
}

TEST(MergeCalls, RunOnTheCallersThreads) {
  int bodies = 0;
  const flashmask_executor executor{sizeof(flashmask_executor), &bodies, [](void*) { return 2; },
                                    [](void* count, int bodies_wanted, void (*body)(void*, int), void* context) {
                                      *static_cast<int*>(count) += bodies_wanted;
                                      for (int i = 0; i < bodies_wanted; ++i) body(context, i);
                                    }};
  flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
  execution.executor = &executor;
  const Tensors tensors;
  const flashmask_merge_tensors forward = tensors.c_forward();
  ASSERT_EQ(flashmask_merge(&forward, &execution), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(bodies, 2);
  const flashmask_merge_gradients backward = tensors.c_backward(true);
  ASSERT_EQ(flashmask_merge_backward(&backward, &execution), FLASHMASK_OK) << flashmask_last_error();
  EXPECT_EQ(bodies, 4);
}

TEST(MergeCalls, NameWhatIsWrong) {
  const Tensors tensors;
  flashmask_merge_tensors forward = tensors.c_forward();
  forward.o2.rank = 5;
  expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "o2 has rank 5");
  forward = tensors.c_forward();
  forward.lse1 = {};
  expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "lse1: shape is absent");
  forward = tensors.c_forward();
  forward.more_count = 1;
  expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "more is NULL");
  std::vector<flashmask_tensor> third = {tensors.c(12), tensors.c(13)};
  third[1].rank = 1;
  forward.more = third.data();
  expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "lse3: shape is (2)");
  forward.more_count = -1;
  expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "more has the size -1");
  for (const std::int64_t count :
       {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), std::int64_t{1} << 62}) {
    forward.more_count = count;
    expect_refused(flashmask_merge(&forward, nullptr), FLASHMASK_INVALID_ARGUMENT, "more has ");
    flashmask_merge_gradients gradients = tensors.c_backward(true);
    gradients.more = third.data();
    gradients.more_count = count;
    expect_refused(flashmask_merge_backward(&gradients, nullptr), FLASHMASK_INVALID_ARGUMENT, "more has ");
  }
  flashmask_merge_gradients backward = tensors.c_backward(true);
  backward.grad_o2.dtype = FLASHMASK_F16;
  expect_refused(flashmask_merge_backward(&backward, nullptr), FLASHMASK_INVALID_ARGUMENT, "grad_o2: dtype is f16");
  expect_refused(flashmask_merge(nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT, "tensors is NULL");
  expect_refused(flashmask_merge_backward(nullptr, nullptr), FLASHMASK_INVALID_ARGUMENT, "tensors is NULL");
}

TEST(MergeCalls, RefuseAStreamOnTheCpu) {
  const Tensors tensors;
  int stream = 0;
  flashmask_execution execution = FLASHMASK_INIT(flashmask_execution);
  execution.stream = &stream;
  const flashmask_merge_tensors forward = tensors.c_forward();
  expect_refused(flashmask_merge(&forward, &execution), FLASHMASK_INVALID_ARGUMENT, "execution.stream");
  const flashmask_merge_gradients backward = tensors.c_backward(true);
  expect_refused(flashmask_merge_backward(&backward, &execution), FLASHMASK_INVALID_ARGUMENT, "execution.stream");
}

}  // namespace
}  // namespace flashmask::c_api
