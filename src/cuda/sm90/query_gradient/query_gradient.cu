// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "cuda/common/launch.cuh"
#include "cuda/runtime/device.h"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/instructions/tensor_map.h"
#include "cuda/sm90/query_gradient/query_gradient.h"
#include "cuda/sm90/query_gradient/query_gradient_kernel.cuh"

namespace flashmask::cuda::sm90 {
namespace {

/// The numbers of registers are what ptxas needs to avoid spills, builders included.
template <class T, MaskForm kForm, int kHeadDim>
struct ShapeOf;
template <class T, MaskForm kForm>
struct ShapeOf<T, kForm, 64> : QueryGradientShape<T, kForm, 64, 128, 2, 2, 2, 72, 216, true> {};
template <class T, MaskForm kForm>
struct ShapeOf<T, kForm, 128> : QueryGradientShape<T, kForm, 128, 128, 1, 2, 2, 56, 224, true> {};
template <class T, MaskForm kForm>
struct ShapeOf<T, kForm, 192> : QueryGradientShape<T, kForm, 192, 64, 1, 2, 2, 72, 216, false> {};
template <class T, MaskForm kForm>
struct ShapeOf<T, kForm, 256> : QueryGradientShape<T, kForm, 256, 64, 1, 2, 1, 56, 224, true> {};

/// Calls body(ShapeOf<T, form, head_dim>).
template <class T, MaskForm kForm, class Body>
auto with_shape(int head_dim, const Body& body) {
  if (head_dim == 64) return body(ShapeOf<T, kForm, 64>{});
  if (head_dim == 128) return body(ShapeOf<T, kForm, 128>{});
  if (head_dim == 192) return body(ShapeOf<T, kForm, 192>{});
  return body(ShapeOf<T, kForm, 256>{});
}

struct WithShape {
  const BackwardTensors& tensors;
  QueryGradientArguments arguments;
  const Problem& problem;
  cudaStream_t stream;

  template <class Shape>
  void operator()(Shape) const {
    using Kernels =
        std::conditional_t<kIsCommon<Shape>, Instances<Shape, Dropping<Shape>, Capping<Shape>, Biasing<Shape>>,
                           Instances<Shape, Dropping<Shape>>>;
    Kernels::with_one_for(problem, [&](auto name) { launch_shape<typename decltype(name)::Shape>(); });
  }

  template <class Shape>
  void launch_shape() const {
    const CUtensorMap q = make_tensor_map("backward: q", tensors.q, Shape::kRows);
    const CUtensorMap k = make_tensor_map("backward: k", tensors.k, Shape::kColumns);
    const CUtensorMap v = make_tensor_map("backward: v", tensors.v, Shape::kColumns);
    const CUtensorMap grad_o = make_tensor_map("backward: grad_o", tensors.grad_o, Shape::kRows);
    const int blocks = std::min(arguments.items, multiprocessors());
    launch<RowMemory<Shape>>("backward: the gradient of q", query_gradient_kernel<Shape>, blocks, Shape::kThreads,
                             stream, q, k, v, grad_o, arguments);
  }
};

}  // namespace

TileShape query_gradient_tile(int head_dim) {
  return with_shape<__half, MaskForm::intervals>(head_dim, [](auto shape) {
    using Shape = decltype(shape);
    return TileShape{Shape::kRows, Shape::kColumns};
  });
}

template <MaskForm kForm>
void launch_query_gradient(const Plan& plan, const BackwardTensors& tensors, const DeviceMap& map,
                           const TileChoice& choice, const BackwardWorkspace& workspace, int head_dim,
                           const KernelExecution& execution, int* next_item) {
  const Problem& problem = plan.problem();
  const TensorView& grad_q = tensors.grad_q;
  const ScoreArguments score = score_arguments(problem, execution, {}, tensors.alibi);
  QueryGradientArguments arguments{row_arguments(plan, map, score, next_item)};
  if (arguments.items == 0) return;
  arguments.choice = choice;
  arguments.statistics = workspace.rows;
  arguments.grad_q = grad_q.data;
  arguments.grad_q_batch = grad_q.strides[0];
  arguments.grad_q_row = grad_q.strides[1];
  arguments.grad_q_head = grad_q.strides[2];
  arguments.head_dim = static_cast<int>(problem.head_dim);
  const WithShape run{tensors, arguments, problem, static_cast<cudaStream_t>(execution.stream)};
  if (problem.dtype == DType::bf16)
    with_shape<__nv_bfloat16, kForm>(head_dim, run);
  else
    with_shape<__half, kForm>(head_dim, run);
}

template void launch_query_gradient<MaskForm::intervals>(const Plan&, const BackwardTensors&, const DeviceMap&,
                                                         const TileChoice&, const BackwardWorkspace&, int,
                                                         const KernelExecution&, int*);
template void launch_query_gradient<MaskForm::bits>(const Plan&, const BackwardTensors&, const DeviceMap&,
                                                    const TileChoice&, const BackwardWorkspace&, int,
                                                    const KernelExecution&, int*);

}  // namespace flashmask::cuda::sm90
