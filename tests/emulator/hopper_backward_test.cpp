// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/compile/change_text.h"
#include "cuda/sm90/backward/column_arguments.h"
#include "cuda/sm90/backward/column_kernel.cuh"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/masks/make_bias_map.h"
#include "cuda/sm90/query_gradient/query_gradient_kernel.cuh"
#include "emulator/backward_call.h"
#include "emulator/changes/emulated_changes.h"
#include "flashmask/builders.h"

/// Hopper's backward on the emulator, against the reference.
namespace flashmask::cuda::sm90 {
namespace {

using emulator::Copies;
using emulator::HostMap;
using sm80::Call;
using sm80::Case;

/// One block, which takes all tiles: blocks of the emulator run one after another, and would wait for each other.
template <class Shape, class Of>
void run_columns(Of& call, const Case& with) {
  const Problem& problem = call.problem;
  const BackwardTensors tensors = call.tensors.backward();
  const HostMap host_map(with.mask, {Shape::kRows, Shape::kColumns}, MapSide::columns, with.visit,
                         static_cast<int>(problem.query_heads));
  const HostMap halves(with.mask, {Shape::kRows, Shape::kColumns / Shape::kGroups}, MapSide::columns, with.visit,
                       static_cast<int>(problem.query_heads));
  const TileMapView& map = host_map.view();
  ColumnArguments arguments{};
  set_outputs(arguments, tensors);
  arguments.statistics = call.statistics();
  arguments.lse = lse_view(problem, tensors);
  arguments.query_sums = call.sums.data();
  arguments.query_length = static_cast<int>(problem.query_length);
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.kv_heads = static_cast<int>(problem.kv_heads);
  arguments.head_dim = static_cast<int>(problem.head_dim);
  arguments.value_dim = static_cast<int>(problem.value_dim);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  const ScoreArguments score = call.score();
  arguments.scale = score.scale;
  arguments.product_log2 = AddsBias<Shape> ? score.bias.product_log2 : score.scale_log2;
  arguments.dropout = score.dropout;
  arguments.alibi = score.alibi;
  arguments.bias = score.bias;
  arguments.softcap = softcap_arguments(problem);
  if (Changes<Shape>) arguments.change = compile::change_operands(problem, compile::change_tensors(tensors));
  arguments.map = map;
  if (Shape::kLeavesOut && with.visit != Visit::all) arguments.halves = halves.view();
  arguments.columns = {static_cast<int>(problem.batch * problem.kv_heads), 2, map.outer_tiles};
  arguments.rows = {arguments.columns.heads * arguments.head_ratio, 2 * arguments.head_ratio,
                    static_cast<int>(call.padded / Shape::kRows)};
  arguments.visits = {{}, map.inner_tiles, map.outer_tiles};
  arguments.mask = call.mask.view();
  const int bundles = arguments.columns.count() * arguments.columns.bundles();
  std::vector<int> counters(static_cast<std::size_t>(2 + bundles + arguments.rows.count() * arguments.rows.bundles()));
  arguments.progress = {counters.data(), counters.data() + 1, counters.data() + 2, counters.data() + 2 + bundles};
  arguments.query_units.tokens = arguments.query_length;
  arguments.key_units.tokens = arguments.key_length;
  const CUtensorMap q = make_tensor_map("q", tensors.q, Shape::kRows),
                    k = make_tensor_map("k", tensors.k, Shape::kColumns),
                    v = make_tensor_map("v", tensors.v, Shape::kColumns),
                    grad_o = make_tensor_map("grad_o", tensors.grad_o, Shape::kRows),
                    o_quarters = make_tensor_map("o", tensors.o, Shape::kRows / 4),
                    grad_o_quarters = make_tensor_map("grad_o", tensors.grad_o, Shape::kRows / 4);
  const BiasMap bias = make_bias_map("bias", problem, tensors.bias);
  emulator::run({.threads = Shape::kThreads, .shared_bytes = sizeof(ColumnMemory<Shape>), .copies = with.copies}, [&] {
    if constexpr (CopiesBias<Shape>)
      biased_column_kernel<Shape>(q, k, v, grad_o, o_quarters, grad_o_quarters, arguments, bias);
    else
      column_kernel<Shape>(q, k, v, grad_o, o_quarters, grad_o_quarters, arguments);
  });
}

template <class Shape, class Of>
void run_rows(Of& call, const Case& with) {
  const Problem& problem = call.problem;
  const BackwardTensors tensors = call.tensors.backward();
  const HostMap map(with.mask, {Shape::kRows, Shape::kColumns}, MapSide::rows, with.visit,
                    static_cast<int>(problem.query_heads));
  QueryGradientArguments arguments{};
  static_cast<RowArguments&>(arguments) = emulator::row_arguments(problem, call.mask, map, call.score());
  int next_item = 0;
  arguments.next_item = &next_item;
  arguments.statistics = call.statistics();
  arguments.grad_q = tensors.grad_q.data;
  arguments.grad_q_batch = tensors.grad_q.strides[0];
  arguments.grad_q_row = tensors.grad_q.strides[1];
  arguments.grad_q_head = tensors.grad_q.strides[2];
  arguments.head_dim = static_cast<int>(problem.head_dim);
  const CUtensorMap q = make_tensor_map("q", tensors.q, Shape::kRows),
                    k = make_tensor_map("k", tensors.k, Shape::kColumns),
                    v = make_tensor_map("v", tensors.v, Shape::kColumns),
                    grad_o = make_tensor_map("grad_o", tensors.grad_o, Shape::kRows);
  emulator::run(
      {.blocks = 2, .threads = Shape::kThreads, .shared_bytes = sizeof(RowMemory<Shape>), .copies = with.copies},
      [&] { query_gradient_kernel<Shape>(q, k, v, grad_o, arguments); });
}

std::vector<Case> cases(MaskForm form, int head_dim) {
  const std::vector<std::int64_t> documents = {70, 90, 40};
  return {{"full, padded dims", masks::full(150, 200), form, Copies::late, Visit::active, 2, 1, head_dim - 8,
           head_dim - 24},
          {"causal", masks::causal(200, 200), form, Copies::early},
          {"a window that some rows see nothing of", masks::sliding_window(200, 150, 70), form, Copies::either},
          {"documents, every tile", masks::causal_document(documents, 230), form, Copies::late, Visit::all},
          {"keys a head", sm80::set_a_head(140), form, Copies::either, Visit::active, 2, 2}};
}

/// The gradient of q by sums.
template <class Columns>
void expect_right_by_sums(const Case& with) {
  Call<typename Columns::Element, Columns::kHeadDim> call(with, 3);
  run_columns<Columns>(call, with);
  call.expect_accurate(with.name);
}

/// The gradient of q by a pass over rows.
template <class Rows, class... Columns>
void expect_right_by_passes(const Case& with) {
  Call<typename Rows::Element, Rows::kHeadDim> call(with, 3);
  (run_columns<Columns>(call, with), ...);
  run_rows<Rows>(call, with);
  call.expect_accurate(with.name);
}

using A = __nv_bfloat16;
using B = __half;
using enum MaskForm;

TEST(EmulatedHopperBackward, HoldsTheBoundBySums) {
  for (const Case& with : cases(intervals, 64)) expect_right_by_sums<Columns64<A, intervals>>(with);
  for (const Case& with : cases(bits, 64)) expect_right_by_sums<Columns64<B, bits>>(with);
  for (const Case& with : cases(intervals, 128)) expect_right_by_sums<Columns128<A, intervals>>(with);
  for (const Case& with : cases(bits, 128)) expect_right_by_sums<Columns128<B, bits>>(with);
}

TEST(EmulatedHopperBackward, DropsAndChangesScores) {
  Case with{"", masks::sliding_window(150, 203, 90)};
  const auto expect = [&]<class... Columns>(const char* name) {
    with.name = name;
    (expect_right_by_sums<Columns>(with), ...);
  };
  with.dropout = 0.3;
  expect.operator()<DroppingColumns<Columns64<A, intervals>>, DroppingColumns<Columns128<B, intervals>>>("dropout");
  with.dropout = 0;
  with.change = scores::softcap(2);
  expect.operator()<Capping<Columns64<A, intervals>>, Capping<Columns128<A, intervals>>>("softcap");
  with.change = scores::alibi();
  expect.operator()<Biasing<Columns64<A, intervals>>, Biasing<Columns128<A, intervals>>>("alibi");
  with.change = scores::bias();
  expect.operator()<AddingColumns<Columns128<A, intervals>>>("bias");
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2, 2, 150, 206}, std::vector<std::int64_t>{1, 2, 1, 206}}) {
    Case in_pairs{"bias, two keys at a time", masks::sliding_window(150, 206, 90)};
    in_pairs.change = scores::bias();
    in_pairs.bias_shape = shape;
    expect_right_by_sums<AddingColumns<Columns128<A, intervals>>>(in_pairs);
  }
  with.change = scores::distance();
  expect.operator()<AddingColumns<Columns64<A, intervals>>, AddingColumns<Columns128<A, intervals>>>("distances");
}

template <int kChange>
void expect_right_changed() {
  Case with{test::kEmulatedChanges[kChange], masks::sliding_window(150, 208, 90)};
  with.change = ScoreChange::parse(test::kEmulatedChanges[kChange]);
  using OfA = typename ChangeOf<kChange, A, true>::Change;
  using OfB = typename ChangeOf<kChange, B, true>::Change;
  expect_right_by_sums<Changed<ColumnsToChange<Columns64<A, intervals>, 2>, OfA>>(with);
  expect_right_by_sums<Changed<Columns128<A, intervals>, OfA>>(with);
  with.form = bits;
  with.kv_heads = 2;
  expect_right_by_sums<Changed<ColumnsToChange<Columns64<B, bits>, 1>, OfB>>(with);
}

template <int... kChanges>
void expect_right_with_changes(std::integer_sequence<int, kChanges...>) {
  (expect_right_changed<kChanges>(), ...);
}

TEST(EmulatedHopperBackward, IsCompiledWithChangesOfScores) {
  expect_right_with_changes(std::make_integer_sequence<int, std::size(test::kEmulatedChanges)>());
}

/// Rows and keys that are no multiple of a tile, whole and partial tiles, and tiles of which a group sees nothing.
TEST(EmulatedHopperBackward, CopiesPanelsOfABias) {
  using Shape = AddingColumns<Columns128<A, intervals>>;
  const auto expect = [](Case with, const std::vector<std::int64_t>& shape) {
    with.change = scores::bias();
    with.bias_shape = shape;
    Call<A, 128> call(with, 3);
    ASSERT_TRUE(make_bias_map("bias", call.problem, call.tensors.backward().bias).exists);
    run_columns<Shape>(call, with);
    call.expect_accurate(with.name);
  };
  for (const std::int64_t batch : {1, 2})
    for (const std::int64_t heads : {1, 2})
      expect({"a window", masks::sliding_window(150, 328, 90), intervals, Copies::late}, {batch, heads, 150, 328});
  expect({"full", masks::full(200, 136), intervals, Copies::early, Visit::active, 2, 1}, {1, 2, 200, 136});
  expect({"every tile", masks::causal(140, 200), intervals, Copies::either, Visit::all}, {1, 2, 140, 200});
}

template <class T, MaskForm kForm>
using Rows64 = QueryGradientShape<T, kForm, 64, 128, 2, 2, 2, 72, 216, true>;
template <class T, MaskForm kForm>
using Rows128 = QueryGradientShape<T, kForm, 128, 128, 1, 2, 2, 56, 224, true>;
template <class T, MaskForm kForm>
using Rows256 = QueryGradientShape<T, kForm, 256, 64, 1, 2, 1, 56, 224, true>;

TEST(EmulatedHopperBackward, HoldsTheBoundInPasses) {
  for (const Case& with : cases(intervals, 64))
    expect_right_by_passes<Rows64<A, intervals>, CarriedColumns64<A, intervals>>(with);
  for (const Case& with : cases(bits, 128)) expect_right_by_passes<Rows128<B, bits>, CarriedColumns128<B, bits>>(with);
  for (const Case& with : cases(intervals, 256))
    expect_right_by_passes<Rows256<A, intervals>, WideKeyColumns<A, intervals, 256>,
                           WideValueColumns<A, intervals, 256>>(with);
}

template <template <class> class Instance>
void expect_right_by_passes_of(const Case& with) {
  expect_right_by_passes<Instance<Rows64<A, intervals>>, Instance<CarriedColumns64<A, intervals>>>(with);
  expect_right_by_passes<Instance<Rows128<A, intervals>>, Instance<CarriedColumns128<A, intervals>>>(with);
  expect_right_by_passes<Instance<Rows256<A, intervals>>, Instance<WideKeyColumns<A, intervals, 256>>,
                         Instance<WideValueColumns<A, intervals, 256>>>(with);
}

TEST(EmulatedHopperBackward, ChangesScoresInPasses) {
  for (Case with : {Case{"full", masks::full(150, 200)},
                    Case{"a window that some rows see nothing of", masks::sliding_window(200, 150, 70)},
                    Case{.name = "keys a head", .mask = sm80::set_a_head(140), .kv_heads = 2}}) {
    with.change = scores::softcap(2);
    expect_right_by_passes_of<Capping>(with);
    with.change = scores::alibi();
    expect_right_by_passes_of<Biasing>(with);
  }
}

}  // namespace
}  // namespace flashmask::cuda::sm90
