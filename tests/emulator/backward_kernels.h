// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/compile/change_text.h"
#include "cuda/sm80/backward/close_rows.cuh"
#include "cuda/sm80/backward/column_kernel.cuh"
#include "cuda/sm80/backward/shapes.cuh"
#include "emulator/backward_call.h"

/// The ways in which mma.sync's kernels compute a backward, on the emulator.
namespace flashmask::cuda::sm80 {

/// The operands of the change that a kernel is compiled with.
template <class Shape, class Of>
ChangeOperands change_of(const Of& call) {
  if constexpr (!Changes<Shape>) return {};
  const BackwardTensors given = call.tensors.backward();
  return compile::change_operands(call.problem, compile::change_tensors(given));
}

template <class Shape, class Of>
void run_columns(Of& call, const Case& with, bool with_sums) {
  const Problem& problem = call.problem;
  const auto& tensors = call.tensors;
  const HostMap host_map(with.mask, {Shape::kRows, Shape::kColumns}, MapSide::columns, with.visit,
                         static_cast<int>(problem.query_heads));
  const TileMapView& map = host_map.view();
  const ColumnArguments arguments{.q = tensor_rows(tensors.q.view()),
                                  .k = tensor_rows(tensors.k.view()),
                                  .v = tensor_rows(tensors.v.view()),
                                  .grad_o = tensor_rows(tensors.grad_o.view()),
                                  .grad_k = output_rows(tensors.grad_k.view()),
                                  .grad_v = output_rows(tensors.grad_v.view()),
                                  .float32_gradients = tensors.grad_k.view().dtype == DType::f32,
                                  .statistics = call.statistics(),
                                  .query_sums = with_sums ? call.sums.data() : nullptr,
                                  .key_length = static_cast<int>(problem.key_length),
                                  .query_heads = static_cast<int>(problem.query_heads),
                                  .kv_heads = static_cast<int>(problem.kv_heads),
                                  .head_dim = static_cast<int>(problem.head_dim),
                                  .value_dim = static_cast<int>(problem.value_dim),
                                  .head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads),
                                  .score = call.score(),
                                  .columns = {static_cast<int>(problem.batch * problem.kv_heads), 2, map.outer_tiles},
                                  .map = map,
                                  .choice = {},
                                  .mask = call.mask.view(),
                                  .change = change_of<Shape>(call)};
  emulator::run({.blocks = static_cast<unsigned>(arguments.columns.all_tiles()),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(ColumnMemory<Shape>),
                 .copies = with.copies,
                 .readable = call.readable()},
                [&] { column_kernel<Shape>(arguments); });
}

template <class Shape, class Of>
void close(Of& call) {
  const Problem& problem = call.problem;
  const int parts = static_cast<int>(call.padded / Shape::kPartRows);
  const ClosingArguments arguments{.query_sums = call.sums.data(),
                                   .grad_q = output_rows(call.tensors.grad_q.view()),
                                   .query_length = static_cast<int>(problem.query_length),
                                   .query_heads = static_cast<int>(problem.query_heads),
                                   .head_dim = static_cast<int>(problem.head_dim),
                                   .parts = parts,
                                   .scale = static_cast<float>(problem.softmax_scale()),
                                   .choice = {}};
  emulator::run(
      {.blocks = static_cast<unsigned>(problem.batch * problem.query_heads * parts), .threads = Shape::kThreads},
      [&] { close_rows<Shape>(arguments, static_cast<int>(blockIdx.x)); });
}

template <class Shape, class Of>
void run_rows(Of& call, const Case& with) {
  const Problem& problem = call.problem;
  const auto& tensors = call.tensors;
  const HostMap map(with.mask, {Shape::kRows, Shape::kColumns}, MapSide::rows, with.visit,
                    static_cast<int>(problem.query_heads));
  QueryGradientArguments arguments{};
  static_cast<RowArguments&>(arguments) = emulator::row_arguments(problem, call.mask, map, call.score());
  arguments.q = tensor_rows(tensors.q.view());
  arguments.k = tensor_rows(tensors.k.view());
  arguments.v = tensor_rows(tensors.v.view());
  arguments.grad_o = tensor_rows(tensors.grad_o.view());
  arguments.grad_q = output_rows(tensors.grad_q.view());
  arguments.statistics = call.statistics();
  arguments.head_dim = static_cast<int>(problem.head_dim);
  arguments.change = change_of<Shape>(call);
  emulator::run({.blocks = static_cast<unsigned>(arguments.items),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(QueryGradientMemory<Shape>),
                 .copies = with.copies,
                 .readable = call.readable()},
                [&] { QueryGradientBlock<Shape>(shared_memory<QueryGradientMemory<Shape>>(), arguments).run(); });
}

template <class Columns>
struct BySums {
  using Element = typename Columns::Element;
  using WithDropout = BySums<Dropping<Columns>>;
  using WithChanges = BySums<Changing<Columns>>;
  static constexpr int kHeadDim = Columns::kHeadDim;
  static void run(Call<Element, kHeadDim>& call, const Case& with) {
    run_columns<Columns>(call, with, true);
    close<Columns>(call);
  }
};

template <class Columns, class Rows>
struct InTwoPasses {
  using Element = typename Columns::Element;
  using WithDropout = InTwoPasses<Dropping<Columns>, Dropping<Rows>>;
  using WithChanges = InTwoPasses<Changing<Columns>, Changing<Rows>>;
  static constexpr int kHeadDim = Columns::kHeadDim;
  static void run(Call<Element, kHeadDim>& call, const Case& with) {
    run_columns<Columns>(call, with, false);
    run_rows<Rows>(call, with);
  }
};

}  // namespace flashmask::cuda::sm80
