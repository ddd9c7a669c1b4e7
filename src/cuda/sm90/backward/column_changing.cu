// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/compiled_kernel.h"
#include "cuda/sm90/backward/column_launch.cuh"

/// Launches kernels that are compiled for a change of scores: nvcc makes none of them.
namespace flashmask::cuda::sm90 {
namespace {

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, ColumnArguments);

template <class Shape>
Kernel compiled(const Problem& problem, cudaStream_t stream) {
  constexpr const char *kHeaders = "#include \"cuda/sm90/backward/column_kernel.cuh\"\n",
                       *kFunction = "flashmask::cuda::sm90::column_kernel";
  if constexpr (Shape::kDelayed)
    return best_compiled_kernel<Kernel, Changed<Shape, Change>>(kHeaders, kFunction, problem, stream);
  else
    return best_compiled_kernel<Kernel, Changed<ColumnsToChange<Shape, 2>, Change>,
                                Changed<ColumnsToChange<Shape, 1>, Change>>(kHeaders, kFunction, problem, stream);
}

}  // namespace

template <class Shape>
void compile_columns(const Problem& problem, cudaStream_t stream) {
  compiled<Shape>(problem, stream);
}

template <class Shape>
void launch_changed_columns(const Problem& problem, const ColumnArguments& arguments, const ColumnMaps& maps,
                            int blocks, cudaStream_t stream) {
  launch<ColumnMemory<Changed<Shape, Change>>>("backward: columns", compiled<Shape>(problem, stream), blocks,
                                               Shape::kThreads, stream, maps.q, maps.k, maps.v, maps.grad_o,
                                               maps.o_quarters, maps.grad_o_quarters, arguments);
}

#define FLASHMASK_CHANGED_COLUMNS(...)                                                                              \
  template void compile_columns<__VA_ARGS__>(const Problem&, cudaStream_t);                                         \
  template void launch_changed_columns<__VA_ARGS__>(const Problem&, const ColumnArguments&, const ColumnMaps&, int, \
                                                    cudaStream_t)
#define FLASHMASK_CHANGED_COLUMNS_OF(T, form)    \
  FLASHMASK_CHANGED_COLUMNS(Columns64<T, form>); \
  FLASHMASK_CHANGED_COLUMNS(Columns128<T, form>)

FLASHMASK_CHANGED_COLUMNS_OF(__nv_bfloat16, MaskForm::intervals);
FLASHMASK_CHANGED_COLUMNS_OF(__nv_bfloat16, MaskForm::bits);
FLASHMASK_CHANGED_COLUMNS_OF(__half, MaskForm::intervals);
FLASHMASK_CHANGED_COLUMNS_OF(__half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
