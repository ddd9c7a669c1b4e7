#pragma once

#include "cpu/backward_kernel.h"
#include "cpu/dot_rate.h"
#include "cpu/forward_kernel.h"
#include "cpu/instruction_set.h"
#include "cpu/intervals_predicate.h"

namespace flashmask::cpu {

/// The table entry of one dtype. Included by the one file of each instruction set.
template <class Isa, class In>
constexpr KernelCode kernel_code(DType dtype) {
  using Forward = ForwardKernel<Isa, In, IntervalsPredicate>;
  using Backward = BackwardKernel<Isa, In, IntervalsPredicate>;
  return {dtype,
          {Forward::scratch_bytes, Forward::run},
          {Backward::scratch_bytes, Backward::padded_head_dim, Backward::prepare, Backward::run}};
}

}  // namespace flashmask::cpu
