// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "cuda/sm80/backward/wide_gradient_kernel.cuh"
#include "emulator/backward_call.h"
#include "flashmask/builders.h"

/// The backward for heads of up to 512 dims, on the emulator, against the reference.
namespace flashmask::cuda::sm80 {
namespace {

template <class T, GradientOf kOf>
void run_gradient(Call<T, 512>& call, const Case& with) {
  using Shape = WideGradientShape<T, kOf>;
  const HostMap map(with.mask, {Shape::kRows, Shape::kColumns}, Shape::kSide, with.visit,
                    static_cast<int>(call.problem.query_heads));
  const WideGradientArguments arguments = wide_gradient_arguments(
      kOf, call.problem, call.tensors.backward(), call.statistics(), map.view(), call.mask.view(), 2, call.score());
  emulator::run({.blocks = static_cast<unsigned>(arguments.outer.all_tiles()),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(WideGradientMemory<Shape>),
                 .copies = with.copies,
                 .readable = call.readable()},
                [&] { wide_gradient_kernel<Shape>(arguments); });
}

template <class T>
void differentiate(Call<T, 512>& call, const Case& with) {
  run_gradient<T, GradientOf::values>(call, with);
  run_gradient<T, GradientOf::keys>(call, with);
  run_gradient<T, GradientOf::queries>(call, with);
}

template <class T>
void expect_gradients(const Case& with) {
  Call<T, 512> call(with, 2);
  differentiate(call, with);
  call.expect_accurate(with.name);
}

TEST(EmulatedWideBackward, HoldsTheBound) {
  using enum MaskForm;
  using A = __nv_bfloat16;
  using B = __half;
  const std::vector<std::int64_t> documents = {70, 30, 40};
  expect_gradients<A>(
      {"full, padded dims", masks::full(70, 140), intervals, Copies::late, Visit::active, 2, 1, 264, 392});
  expect_gradients<A>({"causal", masks::causal(150, 100), intervals, Copies::late});
  expect_gradients<B>({"causal, as bits", masks::causal(70, 150), bits, Copies::early});
  expect_gradients<A>(
      {"a window that some rows see nothing of", masks::sliding_window(150, 90, 30), intervals, Copies::early});
  expect_gradients<A>(
      {"documents as bits, every tile", masks::causal_document(documents, 150), bits, Copies::late, Visit::all, 1, 1});
  expect_gradients<B>({"keys a head", set_a_head(100), intervals, Copies::either, Visit::active, 2, 2});
}

TEST(EmulatedWideBackward, DropsWhatTheReferenceDrops) {
  expect_gradients<__nv_bfloat16>({.name = "a window",
                                   .mask = masks::sliding_window(100, 150, 70),
                                   .head_dim = 264,
                                   .value_dim = 264,
                                   .dropout = 0.1,
                                   .part = true});
  expect_gradients<__half>({.name = "causal, as bits",
                            .mask = masks::causal(70, 150),
                            .form = MaskForm::bits,
                            .head_dim = 264,
                            .value_dim = 264,
                            .dropout = 0.5});
}

TEST(EmulatedWideBackward, CapsScoresAsTheReferenceDoes) {
  expect_gradients<__nv_bfloat16>({.name = "a window with dropout",
                                   .mask = masks::sliding_window(100, 150, 70),
                                   .head_dim = 264,
                                   .value_dim = 264,
                                   .dropout = 0.1,
                                   .change = scores::softcap(1)});
  expect_gradients<__half>({.name = "causal, as bits",
                            .mask = masks::causal(70, 150),
                            .form = MaskForm::bits,
                            .head_dim = 264,
                            .value_dim = 264,
                            .change = scores::softcap(50)});
}

TEST(EmulatedWideBackward, BiasesScoresByDistance) {
  expect_gradients<__nv_bfloat16>({.name = "causal with a softcap",
                                   .mask = masks::causal(70, 150),
                                   .head_dim = 264,
                                   .value_dim = 264,
                                   .change = scores::softcap(2) | scores::alibi()});
}

TEST(EmulatedWideBackward, GivesGradientsOfKeysInFloat32) {
  const Case with{.name = "causal", .mask = masks::causal(40, 60), .head_dim = 264, .value_dim = 512};
  Call<__nv_bfloat16, 512> wide(with, 4), narrow(with, 4);
  wide.tensors.grad_k = like(wide.tensors.grad_k, DType::f32);
  wide.tensors.grad_v = like(wide.tensors.grad_v, DType::f32);
  differentiate(wide, with);
  differentiate(narrow, with);
  expect_that_it_rounds_to(wide.tensors.grad_k, narrow.tensors.grad_k);
  expect_that_it_rounds_to(wide.tensors.grad_v, narrow.tensors.grad_v);
}

}  // namespace
}  // namespace flashmask::cuda::sm80
