// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/compiled_kernel.h"
#include "cuda/sm90/forward/forward_launch.cuh"

/// Launches kernels that are compiled for a change of scores: nvcc makes none of them.
namespace flashmask::cuda::sm90 {
namespace {

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, ForwardArguments);

/// Of two shapes, settled maxima come first, which save a quarter of the work for each score.
template <class Shape>
Kernel compiled(const Problem& problem, bool max_scores, cudaStream_t stream) {
  using Settling = Changed<ForwardToChange<Shape, true>, Change>;
  using Looking = Changed<ForwardToChange<Shape, false>, Change>;
  using Maximizing = Changed<MaximizingForward<ForwardToChange<Shape, false>>, Change>;
  constexpr const char *kHeaders = "#include \"cuda/sm90/forward/forward_kernel.cuh\"\n",
                       *kFunction = "flashmask::cuda::sm90::forward_kernel";
  if (max_scores) return best_compiled_kernel<Kernel, Maximizing>(kHeaders, kFunction, problem, stream);
  return best_compiled_kernel<Kernel, Settling, Looking>(kHeaders, kFunction, problem, stream);
}

}  // namespace

template <class Shape>
void compile_forward(const Problem& problem, bool max_scores, cudaStream_t stream) {
  compiled<Shape>(problem, max_scores, stream);
}

template <class Shape>
void launch_changed_forward(const Problem& problem, bool max_scores, const ForwardArguments& arguments,
                            const ForwardMaps& maps, int blocks, cudaStream_t stream) {
  launch<RowMemory<Changed<ForwardToChange<Shape, false>, Change>>>(
      "forward", compiled<Shape>(problem, max_scores, stream), blocks, Shape::kThreads, stream, maps.q, maps.k, maps.v,
      maps.o, maps.o_row, arguments);
}

#define FLASHMASK_CHANGED_FORWARD(...)                                                                                 \
  template void compile_forward<__VA_ARGS__>(const Problem&, bool, cudaStream_t);                                      \
  template void launch_changed_forward<__VA_ARGS__>(const Problem&, bool, const ForwardArguments&, const ForwardMaps&, \
                                                    int, cudaStream_t)
#define FLASHMASK_CHANGED_FORWARDS(T, form)           \
  FLASHMASK_CHANGED_FORWARD(Forward64<T, form>);      \
  FLASHMASK_CHANGED_FORWARD(Forward128<T, form>);     \
  FLASHMASK_CHANGED_FORWARD(Forward192v128<T, form>); \
  FLASHMASK_CHANGED_FORWARD(Forward192<T, form>);     \
  FLASHMASK_CHANGED_FORWARD(Forward256<T, form>)

FLASHMASK_CHANGED_FORWARDS(__nv_bfloat16, MaskForm::intervals);
FLASHMASK_CHANGED_FORWARDS(__nv_bfloat16, MaskForm::bits);
FLASHMASK_CHANGED_FORWARDS(__half, MaskForm::intervals);
FLASHMASK_CHANGED_FORWARDS(__half, MaskForm::bits);

}  // namespace flashmask::cuda::sm90
