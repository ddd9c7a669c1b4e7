// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/backward_kernel.h"
#include "cpu/dot_rate.h"
#include "cpu/forward_kernel.h"
#include "cpu/instruction_set.h"
#include "cpu/predicates.h"
#include "cpu/tangents_kernel.h"
#include "cpu/walk_backward_kernel.h"
#include "cpu/walk_forward_kernel.h"

namespace flashmask::cpu {

/// Returns the kernels of linear attention; none for products of pairs, as a state is float32.
template <class Isa, class In>
constexpr LinearCode linear_code() {
  if constexpr (Isa::step == 1) {
    using Forward = WalkForward<Isa, In>;
    using Backward = WalkBackward<Isa, In>;
    return {Forward::scratch_bytes, Forward::run, Backward::scratch_bytes, Backward::run};
  } else {
    return {};
  }
}

/// Returns the kernels of one dtype. Included by the one source file of each instruction set.
template <class Isa, class In>
constexpr KernelCode kernel_code(DType dtype) {
  using Forward = ForwardKernel<Isa>;
  using Tangents = TangentsKernel<Isa>;
  using Backward = BackwardKernel<Isa>;
  return {dtype,
          {Forward::scratch_bytes, Forward::run},
          {Tangents::scratch_bytes, Tangents::run},
          {Backward::scratch_bytes, Backward::padded_head_dim, Backward::prepare, Backward::run},
          linear_code<Isa, In>()};
}

/// Returns the predicates in the order of MaskForm.
template <class Isa>
constexpr Predicates predicates_of() {
  return {predicate_code<IntervalsPredicate, Isa>(), predicate_code<BitsPredicate, Isa>()};
}

}  // namespace flashmask::cpu
