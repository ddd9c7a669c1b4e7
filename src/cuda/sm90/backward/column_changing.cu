// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward/column_changing.h"
#include "cuda/sm90/backward/column_launch.cuh"

namespace flashmask::cuda::sm90 {

template <class Shape>
KernelCode changed_columns_code() {
  constexpr const char *kHeaders = "#include \"cuda/sm90/backward/column_kernel.cuh\"\n",
                       *kFunction = "flashmask::cuda::sm90::column_kernel";
  if constexpr (Shape::kDelayed)
    return kernel_code<Changed<Shape, Change>>(kHeaders, kFunction);
  else
    return kernel_code<Changed<ColumnsToChange<Shape, 2>, Change>, Changed<ColumnsToChange<Shape, 1>, Change>>(
        kHeaders, kFunction);
}

template <class Shape>
void launch_changed_columns(const Problem& problem, const BackwardTensors& tensors, ColumnArguments arguments,
                            const ColumnMaps& maps, int blocks, cudaStream_t stream) {
  using Kernel =
      void (*)(CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, ColumnArguments);
  static const KernelCode code = changed_columns_code<Shape>();
  const compile::ChangeTensors read = compile::change_tensors(tensors);
  arguments.change = compile::change_operands(problem, read);
  const void* const kernel = compiled_kernel(code, problem, compile::forms_of(problem.change, read), stream);
  launch<ColumnMemory<Changed<Shape, Change>>>("backward: columns", reinterpret_cast<Kernel>(const_cast<void*>(kernel)),
                                               blocks, Shape::kThreads, stream, maps.q, maps.k, maps.v, maps.grad_o,
                                               maps.o_quarters, maps.grad_o_quarters, arguments);
}

#define FLASHMASK_CHANGED_COLUMNS(...)                                                                       \
  template KernelCode changed_columns_code<__VA_ARGS__>();                                                   \
  template void launch_changed_columns<__VA_ARGS__>(const Problem&, const BackwardTensors&, ColumnArguments, \
                                                    const ColumnMaps&, int, cudaStream_t)
#define FLASHMASK_CHANGED_COLUMNS_OF(T, form)    \
  FLASHMASK_CHANGED_COLUMNS(Columns64<T, form>); \
  FLASHMASK_CHANGED_COLUMNS(Columns128<T, form>)

FLASHMASK_CHANGED_COLUMNS_OF(__nv_bfloat16, MaskForm::intervals);
FLASHMASK_CHANGED_COLUMNS_OF(__nv_bfloat16, MaskForm::bits);
FLASHMASK_CHANGED_COLUMNS_OF(__half, MaskForm::intervals);
FLASHMASK_CHANGED_COLUMNS_OF(__half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
