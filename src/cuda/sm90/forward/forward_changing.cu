// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/forward/forward_changing.h"
#include "cuda/sm90/forward/forward_launch.cuh"
#include "plan/plan_choice.h"

namespace flashmask::cuda::sm90 {

/// Returns the code of two shapes: settled maxima come first, which save a quarter of the work for each score.
template <class Shape>
KernelCode changed_forward_code(bool max_scores) {
  using Looking = ForwardToChange<Shape, false>;
  constexpr const char *kHeaders = "#include \"cuda/sm90/forward/forward_kernel.cuh\"\n",
                       *kFunction = "flashmask::cuda::sm90::forward_kernel";
  if (max_scores) return kernel_code<Changed<MaximizingForward<Looking>, Change>>(kHeaders, kFunction);
  return kernel_code<Changed<ForwardToChange<Shape, true>, Change>, Changed<Looking, Change>>(kHeaders, kFunction);
}

template <class Shape>
void launch_changed_forward(const Plan& plan, const ForwardTensors& tensors, ForwardArguments arguments,
                            const ForwardMaps& maps, int blocks, cudaStream_t stream) {
  const Problem& problem = plan.problem();
  using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, CUtensorMap, ForwardArguments);
  static const KernelCode codes[] = {changed_forward_code<Shape>(false), changed_forward_code<Shape>(true)};
  const compile::ChangeTensors read = compile::change_tensors(tensors);
  arguments.change = compile::change_operands(problem, read);
  const void* const kernel =
      compiled_kernel(codes[tensors.max_scores.present()], problem, compile::forms_of(problem.change, read), stream,
                      PlanAccess::compiled_beside_forward(plan));
  launch<RowMemory<Changed<ForwardToChange<Shape, false>, Change>>>(
      "forward", reinterpret_cast<Kernel>(const_cast<void*>(kernel)), blocks, Shape::kThreads, stream, maps.q, maps.k,
      maps.v, maps.o, maps.o_row, arguments);
}

#define FLASHMASK_CHANGED_FORWARD(...)                                                                    \
  template KernelCode changed_forward_code<__VA_ARGS__>(bool);                                            \
  template void launch_changed_forward<__VA_ARGS__>(const Plan&, const ForwardTensors&, ForwardArguments, \
                                                    const ForwardMaps&, int, cudaStream_t)
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
