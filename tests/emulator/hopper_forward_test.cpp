// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/sm90/forward/forward_arguments.h"
#include "cuda/sm90/forward/forward_consumer.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"
#include "cuda/sm90/rows/row_kernel.cuh"
#include "emulator/changes/emulated_changes.h"
#include "emulator/forward_call.h"
#include "flashmask/builders.h"

/// Hopper's forward on the emulator, against the reference.
namespace flashmask::cuda::sm90 {
namespace {

using check::AttentionTensors;
using emulator::Copies;
using sm80::expect_accurate;
using sm80::How;
using sm80::problem_for;
using sm80::results;
using sm80::Size;

template <class Shape>
void attend(const Mask& mask, const Problem& problem, AttentionTensors& tensors, const How& how) {
  sm80::with_rows<Shape>(mask, problem, tensors, how, [&](RowArguments rows, const auto& given, const auto&) {
    int next_item = 0;
    rows.next_item = &next_item;
    ForwardArguments arguments = forward_arguments(rows, problem, given);
    if (Changes<Shape>) arguments.change = compile::change_operands(problem, compile::change_tensors(given));
    const CUtensorMap q = make_tensor_map("q", given.q, Shape::kRows),
                      k = make_tensor_map("k", given.k, Shape::kColumns),
                      v = make_tensor_map("v", given.v, Shape::kColumns),
                      o = make_tensor_map("o", given.o, Shape::kRows / Shape::kConsumerWarps),
                      o_row = make_tensor_map("o", given.o, 1);
    const BiasMap bias = make_bias_map("bias", problem, given.bias);
    const emulator::Launch launch{.blocks = static_cast<unsigned>(how.blocks != 0 ? how.blocks : 2),
                                  .threads = Shape::kThreads,
                                  .shared_bytes = sizeof(RowMemory<Shape>),
                                  .copies = how.copies};
    emulator::run(launch, [&] {
      run_roles<ForwardConsumer<Shape>, Shape>(arguments, {&q, &k, &v, nullptr, &o, &o_row, &bias});
    });
  });
}

/// Copies at once and late, which give the same bits.
template <class Shape>
void expect_right(const Mask& mask, const Problem& problem, check::Sinks sinks = check::Sinks::none) {
  AttentionTensors tensors(problem, 7, sinks);
  attend<Shape>(mask, problem, tensors, {.form = Shape::kForm, .copies = Copies::early});
  expect_accurate(mask, problem, tensors, {}, KeepsMaxScores<Shape>);
  const std::vector<double> expected = results(tensors);
  attend<Shape>(mask, problem, tensors, {.form = Shape::kForm, .copies = Copies::late, .blocks = 3});
  EXPECT_EQ(results(tensors), expected);
}

template <class Shape>
void expect_right_over_masks() {
  using namespace masks;
  const Size odd{150, 203, 2, 1};
  expect_right<Shape>(full(odd.rows, odd.columns), problem_for<Shape>(odd));
  expect_right<Shape>(sliding_window(odd.rows, odd.columns, 40), problem_for<Shape>(odd));
  expect_right<Shape>(causal_document(std::vector<std::int64_t>{70, 9, 80}, 200), problem_for<Shape>({200, 200}));
}

TEST(EmulatedHopperForward, IsRight) {
  expect_right_over_masks<Forward64<__nv_bfloat16, MaskForm::intervals>>();
  expect_right_over_masks<Forward128<__half, MaskForm::intervals>>();
  expect_right_over_masks<Forward192v128<__nv_bfloat16, MaskForm::bits>>();
  expect_right_over_masks<Forward192<__nv_bfloat16, MaskForm::intervals>>();
  expect_right_over_masks<Forward256<__half, MaskForm::bits>>();
}

TEST(EmulatedHopperForward, IsRightWithSmallTiles) {
  expect_right_over_masks<ShortForward64<__half, MaskForm::intervals>>();
  expect_right_over_masks<ShortForward128<__nv_bfloat16, MaskForm::bits>>();
}

TEST(EmulatedHopperForward, PadsSmallerHeads) {
  using Of64 = Forward64<__nv_bfloat16, MaskForm::intervals>;
  using Of256 = Forward256<__nv_bfloat16, MaskForm::intervals>;
  expect_right<Of64>(masks::causal(70, 90), problem_for<Of64>({70, 90}, 40, 56));
  expect_right<Of256>(masks::causal(70, 90), problem_for<Of256>({70, 90}, 200, 136));
}

/// Rows that see many tiles, of which a late one has far larger scores than those that the maxima settled on.
TEST(EmulatedHopperForward, RepeatsTilesUnderMaximaThatSettledTooEarly) {
  using Shape = Forward128<__nv_bfloat16, MaskForm::intervals>;
  const Problem problem = problem_for<Shape>({130, 1500});
  const Mask mask = masks::full(130, 1500);
  AttentionTensors tensors(problem, 5);
  for (const std::int64_t key : {1100, 1301})
    for (std::int64_t dim = 0; dim < 128; ++dim) tensors.k.set(key * 128 + dim, 20 * tensors.q.at(77 * 128 + dim));
  for (const Copies copies : {Copies::early, Copies::late}) {
    attend<Shape>(mask, problem, tensors, {.copies = copies});
    expect_accurate(mask, problem, tensors);
  }
}

/// Rows that see nothing, and scores of ever later keys that grow by less than maxima may lag behind.
template <class Shape>
void expect_largest_scores() {
  using Asked = MaximizingForward<Shape>;
  expect_right<Asked>(masks::causal(150, 100), problem_for<Shape>({150, 100, 2, 1}), check::Sinks::of_heads);
  const Problem problem = problem_for<Shape>({130, 1500});
  const Mask mask = masks::full(130, 1500);
  AttentionTensors tensors(problem, 5);
  for (std::int64_t i = 0; i < tensors.q.size(); ++i) tensors.q.set(i, i % Shape::kHeadDim == 0 ? 1 : 0);
  for (std::int64_t i = 0; i < tensors.k.size(); ++i)
    tensors.k.set(i, i % Shape::kHeadDim == 0 ? static_cast<float>(i / Shape::kHeadDim / 64) : 0);
  attend<Asked>(mask, problem, tensors, {.form = Shape::kForm});
  expect_accurate(mask, problem, tensors, {}, true);
}

TEST(EmulatedHopperForward, KeepsTheLargestScores) {
  expect_largest_scores<Forward64<__nv_bfloat16, MaskForm::intervals>>();
  expect_largest_scores<ShortForward64<__half, MaskForm::intervals>>();
  expect_largest_scores<Forward128<__half, MaskForm::bits>>();
  expect_largest_scores<ShortForward128<__nv_bfloat16, MaskForm::intervals>>();
  expect_largest_scores<Forward192v128<__nv_bfloat16, MaskForm::intervals>>();
  expect_largest_scores<Forward256<__nv_bfloat16, MaskForm::intervals>>();
}

TEST(EmulatedHopperForward, FindsMasksOfHeadsAndBatchEntries) {
  const std::vector<Mask> heads = {masks::causal(90, 90), masks::sliding_window(90, 90, 5), masks::full(90, 90),
                                   masks::causal_document(std::vector<std::int64_t>{50, 40}, 90)};
  const Mask two[2] = {stack_heads(std::vector<Mask>{heads[0], heads[1]}),
                       stack_heads(std::vector<Mask>{heads[2], heads[3]})};
  using Shape = Forward64<__half, MaskForm::intervals>;
  expect_right<Shape>(stack_batch(two), problem_for<Shape>({90, 90, 4, 2, 2}));
}

/// The last rows see nothing.
TEST(EmulatedHopperForward, GivesSinksTheirShare) {
  using Shape = Forward64<__nv_bfloat16, MaskForm::intervals>;
  const Mask mask = masks::causal_document(std::vector<std::int64_t>{50, 30}, 90);
  for (const check::Sinks sinks : {check::Sinks::of_heads, check::Sinks::narrow_of_heads, check::Sinks::of_rows})
    expect_right<Shape>(mask, problem_for<Shape>({90, 90, 4, 2, 2}), sinks);
}

TEST(EmulatedHopperForward, VisitingEveryTileGivesTheSameBits) {
  using Shape = Forward128<__nv_bfloat16, MaskForm::intervals>;
  const Problem problem = problem_for<Shape>({150, 330, 2, 2});
  const Mask mask = masks::sliding_window(150, 330, 60);
  AttentionTensors tensors(problem, 3);
  attend<Shape>(mask, problem, tensors, {});
  const std::vector<double> skipping = results(tensors);
  attend<Shape>(mask, problem, tensors, {.visit = Visit::all});
  EXPECT_EQ(results(tensors), skipping);
}

template <template <template <class> class, class, MaskForm> class Of, template <class> class Instance>
void expect_right_of(const Problem& given, const Mask& mask) {
  using Shape = Of<Instance, __nv_bfloat16, MaskForm::intervals>;
  Problem problem = problem_for<Shape>({150, 203, 2, 1});
  problem.dropout = given.dropout;
  problem.change = given.change;
  expect_right<Shape>(mask, problem);
}

template <template <template <class> class, class, MaskForm> class Of>
void expect_right_with_instances(const Mask& mask) {
  Problem problem;
  problem.dropout = 0.3;
  expect_right_of<Of, Dropping>(problem, mask);
  problem.dropout = 0;
  problem.change = scores::softcap(2);
  expect_right_of<Of, Capping>(problem, mask);
  problem.change = scores::alibi();
  expect_right_of<Of, Biasing>(problem, mask);
  problem.change = scores::bias();
  expect_right_of<Of, Adding>(problem, mask);
  problem.change = scores::distance();
  expect_right_of<Of, Adding>(problem, mask);
}

TEST(EmulatedHopperForward, DropsAndChangesScores) {
  expect_right_with_instances<ForwardInstance64>(masks::causal(150, 203));
  expect_right_with_instances<ForwardInstance128>(masks::sliding_window(150, 203, 90));
  expect_right_with_instances<ForwardInstance256>(masks::full(150, 203));
}

template <int kChange, class Shape>
using ChangedBy = Changed<Shape, typename ChangeOf<kChange, typename Shape::Element, true>::Change>;

template <int kChange, class Shape>
void expect_right_changed(const Mask& mask) {
  using Kernel = ChangedBy<kChange, Shape>;
  Problem problem =
      problem_for<Kernel>({static_cast<int>(mask.shape().rows), static_cast<int>(mask.shape().columns), 2, 1, 2});
  problem.change = ScoreChange::parse(test::kEmulatedChanges[kChange]);
  expect_right<Kernel>(mask, problem, check::Sinks::of_heads);
}

using ToChange64 = Forward64<__nv_bfloat16, MaskForm::intervals>;

template <int... kChanges>
void expect_right_with_changes(std::integer_sequence<int, kChanges...>) {
  const Mask window = masks::sliding_window(150, 208, 90);  // rows of a bias in eights, as the texts read them
  (expect_right_changed<kChanges, ForwardToChange<ToChange64, true>>(masks::causal(40, 600)), ...);
  (expect_right_changed<kChanges, ForwardToChange<Forward128<__half, MaskForm::bits>, true>>(window), ...);
}

/// With enough tiles that maxima settle.
TEST(EmulatedHopperForward, IsCompiledWithChangesOfScores) {
  expect_right_with_changes(std::make_integer_sequence<int, std::size(test::kEmulatedChanges)>());
}

constexpr int kDistance = 3;  // of kEmulatedChanges

TEST(EmulatedHopperForward, IsCompiledInOtherShapes) {
  const Mask window = masks::sliding_window(150, 203, 90);
  expect_right_changed<kDistance, ForwardToChange<ToChange64, false>>(window);
  expect_right_changed<kDistance, MaximizingForward<ForwardToChange<ToChange64, false>>>(window);
  expect_right_changed<kDistance, ForwardToChange<Forward256<__nv_bfloat16, MaskForm::intervals>, true>>(window);
}

/// The change of a tile that is repeated is found from its place again.
TEST(EmulatedHopperForward, ChangesScoresAgainWhereATileIsRepeated) {
  using Shape = ChangedBy<kDistance, ForwardToChange<ToChange64, true>>;
  Problem problem = problem_for<Shape>({130, 1500, 2, 1, 2});
  problem.change = ScoreChange::parse(test::kEmulatedChanges[kDistance]);
  const Mask mask = masks::full(130, 1500);
  AttentionTensors tensors(problem, 5);
  for (const std::int64_t key : {1100, 1301})
    for (std::int64_t dim = 0; dim < 64; ++dim) tensors.k.set(key * 64 + dim, 20 * tensors.q.at(77 * 128 + dim));
  for (const Copies copies : {Copies::early, Copies::late}) {
    attend<Shape>(mask, problem, tensors, {.copies = copies});
    expect_accurate(mask, problem, tensors);
  }
}

template <template <template <class> class, class, MaskForm> class Of>
using AddingForward = Of<Adding, __nv_bfloat16, MaskForm::intervals>;

/// Values of which some hide scores and some rows see nothing by them.
float some_bias(std::int64_t number, std::int64_t keys) {
  if (number / keys % 50 == 7 || number % 13 == 0) return -INFINITY;
  if (number % 17 == 0) return -1e30F;
  return static_cast<float>(number * 37 % 64) / 32 - 1;
}

/// A problem of two batch entries and two query heads with a bias of this shape.
template <class Shape>
AttentionTensors biased(Problem& problem, const std::vector<std::int64_t>& shape) {
  problem = problem_for<Shape>({static_cast<int>(shape[2]), static_cast<int>(shape[3]), 2, 1, 2});
  problem.change = scores::bias();
  AttentionTensors tensors(problem, 7);
  tensors.bias.emplace(problem.dtype, shape);
  for (std::int64_t i = 0; i < tensors.bias->size(); ++i) tensors.bias->set(i, some_bias(i, shape[3]));
  return tensors;
}

bool copies_bias(const Problem& problem, const TensorView& bias) {
  return make_bias_map("bias", problem, {bias, 0}).exists;
}

/// Rows and keys that are no multiple of a tile, whole and partial tiles.
template <class Shape>
void expect_right_with_panels(const std::vector<std::int64_t>& shape, const Mask& mask) {
  Problem problem;
  AttentionTensors tensors = biased<Shape>(problem, shape);
  ASSERT_TRUE(copies_bias(problem, tensors.bias->view()));
  attend<Shape>(mask, problem, tensors, {.copies = Copies::early});
  expect_accurate(mask, problem, tensors);
  const std::vector<double> expected = results(tensors);
  attend<Shape>(mask, problem, tensors, {.copies = Copies::late, .blocks = 3});
  EXPECT_EQ(results(tensors), expected);
}

TEST(EmulatedHopperForward, CopiesPanelsOfABias) {
  using Of128 = AddingForward<ForwardInstance128>;
  using Of256 = AddingForward<ForwardInstance256>;
  const Mask window = masks::sliding_window(150, 328, 90);
  for (const std::int64_t batch : {1, 2})
    for (const std::int64_t heads : {1, 2}) expect_right_with_panels<Of128>({batch, heads, 150, 328}, window);
  expect_right_with_panels<Of256>({1, 2, 150, 328}, window);
  for (const std::int64_t rows : {1, 150}) {
    expect_right_with_panels<Of128>({1, 1, rows, 264}, masks::full(rows, 264));
    expect_right_with_panels<Of256>({2, 2, rows, 264}, masks::full(rows, 264));
  }
}

/// Puts a tensor's values into memory where rows lie `pitch` numbers apart, from number `start` on.
TensorView with_pitch(check::HostTensor& memory, const check::HostTensor& from, std::int64_t pitch,
                      std::int64_t start) {
  const std::int64_t rows = from.shape(2), keys = from.shape(3), all = from.size() / keys;
  for (std::int64_t i = 0; i < from.size(); ++i) memory.set(start + i / keys * pitch + i % keys, from.at(i));
  EXPECT_LE(start + all * pitch, memory.size());
  TensorView view = from.view();
  view.data = static_cast<std::uint16_t*>(memory.view().data) + start;
  view.strides = {from.shape(1) * rows * pitch, rows * pitch, pitch, 1};
  return view;
}

TEST(EmulatedHopperForward, FindsTheSameBitsHoweverABiasLies) {
  using Shape = AddingForward<ForwardInstance128>;
  Problem problem;
  AttentionTensors tensors = biased<Shape>(problem, {1, 2, 150, 203});
  const Mask mask = masks::sliding_window(150, 203, 90);
  ASSERT_FALSE(copies_bias(problem, tensors.bias->view())) << "rows are 406 bytes apart";
  attend<Shape>(mask, problem, tensors, {});
  expect_accurate(mask, problem, tensors);
  const std::vector<double> expected = results(tensors);
  check::HostTensor memory(problem.dtype, {2, 150, 1, 224});
  for (const auto& [pitch, start, copied] :
       {std::tuple{208, 0, true}, {216, 24, true}, {208, 4, false}, {204, 0, false}}) {
    const TensorView view = with_pitch(memory, *tensors.bias, pitch, start);
    ASSERT_EQ(copies_bias(problem, view), copied) << pitch << " " << start;
    attend<Shape>(mask, problem, tensors, {.bias = view});
    EXPECT_EQ(results(tensors), expected) << pitch << " " << start;
  }
}

TEST(EmulatedHopperForward, CopiesOnlyWhatTheCopyEngineReads) {
  using Shape = AddingForward<ForwardInstance128>;
  Problem problem;
  const AttentionTensors tensors = biased<Shape>(problem, {2, 2, 16, 64});
  TensorView view = tensors.bias->view();
  EXPECT_TRUE(copies_bias(problem, view));
  view.strides[0] = view.strides[1] = 0;
  const BiasMap shared = make_bias_map("bias", problem, {view, 0});
  EXPECT_TRUE(shared.exists && shared.of_batch == 0 && shared.of_head == 0);
  view.strides[2] = 0;
  EXPECT_FALSE(copies_bias(problem, view)) << "rows share their values";
  view = tensors.bias->view();
  view.strides[2] = -64;
  EXPECT_FALSE(copies_bias(problem, view)) << "rows lie backwards";
  view.strides[2] = 68;
  EXPECT_FALSE(copies_bias(problem, view)) << "rows are 136 bytes apart";
  view = tensors.bias->view();
  view.dtype = DType::f32;
  EXPECT_FALSE(copies_bias(problem, view));
  problem.change = scores::distance();
  EXPECT_FALSE(copies_bias(problem, tensors.bias->view()));
}

/// A late bias that is far larger than the scores that the maxima settled on.
TEST(EmulatedHopperForward, AddsABiasAgainWhereATileIsRepeated) {
  using Shape = AddingForward<ForwardInstance128>;
  Problem problem;
  AttentionTensors tensors = biased<Shape>(problem, {1, 2, 130, 1504});
  for (std::int64_t row = 0; row < 2 * 130; ++row)
    for (const std::int64_t key : {1101, 1303}) tensors.bias->set(row * 1504 + key, static_cast<float>(40 + row % 7));
  const Mask mask = masks::full(130, 1504);
  for (const Copies copies : {Copies::early, Copies::late}) {
    attend<Shape>(mask, problem, tensors, {.copies = copies});
    expect_accurate(mask, problem, tensors);
  }
}

}  // namespace
}  // namespace flashmask::cuda::sm90
