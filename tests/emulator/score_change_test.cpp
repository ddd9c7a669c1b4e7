// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "cuda/compile/compiled_kernel.h"
#include "emulator/backward_kernels.h"
#include "emulator/changes/emulated_changes.h"
#include "emulator/forward_call.h"
#include "flashmask/builders.h"

/// Kernels of mma.sync that are compiled with a change of scores: on the emulator, against the reference, with the
/// texts that are generated for them.
namespace flashmask::cuda::sm80 {
namespace {

template <class Of>
class CompiledChange : public testing::Test {};
template <int kNumber>
using Number = std::integral_constant<int, kNumber>;
using All =
    testing::Types<Number<0>, Number<1>, Number<2>, Number<3>, Number<4>, Number<5>, Number<6>, Number<7>, Number<8>>;
static_assert(std::size(test::kEmulatedChanges) == 9);
TYPED_TEST_SUITE(CompiledChange, All);

/// As NVRTC reads them.
TEST(CompiledKernels, AreNamedAsTheirShapesAre) {
  using Forward = Changed<Dropping<ForwardShape<__half, 64, 64, 2, Queries::registers, 3>>, flashmask::cuda::Change>;
  using Backward = Changed<LargeColumns<__nv_bfloat16, 64>, flashmask::cuda::Change>;
  const auto name = [](std::string text) {
    std::erase(text, ' ');
    return text;
  };
  const std::string cuda = "flashmask::cuda::", sm80 = cuda + "sm80::";
  EXPECT_EQ(name(type_name<Forward>()), cuda + "Changed<" + cuda + "Dropping<" + sm80 +
                                            "ForwardShape<__half,64,64,2,(" + sm80 + "Queries)1,3,128,4>>," + cuda +
                                            "Change>");
  EXPECT_EQ(name(type_name<Backward>()),
            cuda + "Changed<" + sm80 + "ColumnShape<__nv_bfloat16,64," + sm80 + "LargeForm<64>>," + cuda + "Change>");
}

template <class Of, class T, bool kBatch = true>
using Change = typename ChangeOf<Of::value, T, kBatch>::Change;

/// Holds what the emulator compiles against what NVRTC compiles.
template <class Of, class T, bool kBatch>
void expect_text(const Problem& problem) {
  const check::AttentionTensors tensors(problem, 1);
  const ForwardTensors given = tensors.forward();
  const TensorForms forms = compile::forms_of(problem.change, compile::change_tensors(given));
  const std::string text = ChangeOf<Of::value, T, kBatch>::kText;
  EXPECT_EQ(compile::change_text(problem.change, forms), text);
}

template <class Of, bool kBatch, class Shape>
void expect_right_forward() {
  using T = typename Shape::Element;
  using Kernel = Changed<Shape, Change<Of, T, kBatch>>;
  Problem problem = problem_for<Kernel>({150, 208, 4, 2, kBatch ? 2 : 1});
  problem.change = ScoreChange::parse(test::kEmulatedChanges[Of::value]);
  expect_text<Of, T, kBatch>(problem);
  expect_right<Kernel>(masks::sliding_window(150, 208, 90), problem, check::Sinks::of_heads);
  problem.dropout = 0.3;
  expect_right<Changed<Maximizing<Dropping<Shape>>, Change<Of, T, kBatch>>>(masks::causal(150, 208), problem);
}

TYPED_TEST(CompiledChange, IsRightForward) {
  expect_right_forward<TypeParam, true, ForwardShape<__half, 64, 64, 2, Queries::registers, 3>>();
  expect_right_forward<TypeParam, false, ForwardShape<__nv_bfloat16, 128, 128, 2, Queries::shared, 2>>();
}

template <class Of, class Way>
void expect_right_backward(double dropout) {
  const std::vector<std::int64_t> documents = {70, 90, 40};
  const std::vector<Case> cases = {{.name = "causal", .mask = masks::causal(120, 152), .dropout = dropout},
                                   {.name = "documents as bits",
                                    .mask = masks::causal_document(documents, 232),
                                    .form = MaskForm::bits,
                                    .dropout = dropout}};
  unsigned seed = 1;
  for (Case with : cases) {
    with.change = ScoreChange::parse(test::kEmulatedChanges[Of::value]);
    Call<typename Way::Element, Way::kHeadDim> call(with, seed++);
    Way::run(call, with);
    call.expect_accurate(with.name);
  }
}

TYPED_TEST(CompiledChange, IsRightBackward) {
  using Of16 = Change<TypeParam, __nv_bfloat16>;
  using Columns64 = LargeColumns<__nv_bfloat16, 64>;
  expect_right_backward<TypeParam, BySums<Changed<Columns64, Of16>>>(0);
  expect_right_backward<TypeParam, BySums<Changed<Dropping<RoomyColumns<__half, 128>>, Change<TypeParam, __half>>>>(
      0.3);
  expect_right_backward<TypeParam, InTwoPasses<Changed<Columns64, Of16>, Changed<LargeRows<__nv_bfloat16, 64>, Of16>>>(
      0);
}

/// What hidden keys have in an operand is not used, and may be NaN.
TEST(CompiledKernels, DoNotUseWhatHiddenKeysHave) {
  using Of = Change<Number<8>, __nv_bfloat16>;
  const std::vector<std::int64_t> queries = {100, 0}, keys = {1, 149};
  const Case with{.name = "all keys but the first are hidden",
                  .mask = masks::document(queries, keys),
                  .change = ScoreChange::parse(test::kEmulatedChanges[8])};
  Call<__nv_bfloat16, 64> call(with, 3);
  call.tensors.operands[0].set(1, NAN);
  InTwoPasses<Changed<LargeColumns<__nv_bfloat16, 64>, Of>, Changed<LargeRows<__nv_bfloat16, 64>, Of>>::run(call, with);
  call.expect_accurate(with.name);
}

}  // namespace
}  // namespace flashmask::cuda::sm80
