// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "cuda/compile/compiled_kernel.h"
#include "emulator/backward_kernels.h"
#include "emulator/changes/changes.h"
#include "emulator/forward_call.h"
#include "flashmask/builders.h"
#include "source_folder.h"

/// Kernels of mma.sync that are compiled with a change of scores: on the emulator, against the reference, with the
/// texts that are generated for them.
namespace flashmask::cuda::sm80 {
namespace {

template <class Of>
class CompiledChange : public testing::Test {};
using All = testing::Types<TwoCaps, CappedAlibi, CappedBias, ScaledDistance, SignedDistance>;
TYPED_TEST_SUITE(CompiledChange, All);

/// The emulator compiles what NVRTC compiles.
TYPED_TEST(CompiledChange, HasTheTextOfItsFile) {
  std::ifstream file(test::source_folder() + "/tests/emulator/changes/" + TypeParam::kFile);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(compile::change_text(ScoreChange::parse(TypeParam::kChange)), text);
}

/// As NVRTC reads them.
TEST(CompiledKernels, AreNamedAsTheirShapesAre) {
  using Forward = Changed<Dropping<ForwardShape<__half, 64, 64, 2, Queries::registers, 3>>, cuda::Change>;
  using Backward = Changed<LargeColumns<__nv_bfloat16, 64>, cuda::Change>;
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

template <class Of, class Shape>
void expect_right_forward() {
  using Kernel = Changed<Shape, typename Of::Change>;
  Problem problem = problem_for<Kernel>({150, 203, 4, 2, 2});
  problem.change = ScoreChange::parse(Of::kChange);
  expect_right<Kernel>(masks::sliding_window(150, 203, 90), problem, check::Sinks::of_heads);
  problem.dropout = 0.3;
  expect_right<Changed<Maximizing<Dropping<Shape>>, typename Of::Change>>(masks::causal(150, 203), problem);
}

TYPED_TEST(CompiledChange, IsRightForward) {
  expect_right_forward<TypeParam, ForwardShape<__half, 64, 64, 2, Queries::registers, 3>>();
  expect_right_forward<TypeParam, ForwardShape<__nv_bfloat16, 128, 128, 2, Queries::shared, 2>>();
}

template <class Of, class Way>
void expect_right_backward(double dropout) {
  const std::vector<std::int64_t> documents = {70, 90, 40};
  const std::vector<Case> cases = {{.name = "causal", .mask = masks::causal(120, 150), .dropout = dropout},
                                   {.name = "documents as bits",
                                    .mask = masks::causal_document(documents, 230),
                                    .form = MaskForm::bits,
                                    .dropout = dropout}};
  unsigned seed = 1;
  for (Case with : cases) {
    with.change = ScoreChange::parse(Of::kChange);
    Call<typename Way::Element, Way::kHeadDim> call(with, seed++);
    Way::run(call, with);
    call.expect_accurate(with.name);
  }
}

TYPED_TEST(CompiledChange, IsRightBackward) {
  using Change = typename TypeParam::Change;
  using Columns64 = LargeColumns<__nv_bfloat16, 64>;
  expect_right_backward<TypeParam, BySums<Changed<Columns64, Change>>>(0);
  expect_right_backward<TypeParam, BySums<Changed<Dropping<RoomyColumns<__half, 128>>, Change>>>(0.3);
  expect_right_backward<TypeParam,
                        InTwoPasses<Changed<Columns64, Change>, Changed<LargeRows<__nv_bfloat16, 64>, Change>>>(0);
}

}  // namespace
}  // namespace flashmask::cuda::sm80
