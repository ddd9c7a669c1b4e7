// SPDX-License-Identifier: Apache-2.0
// What XLA calls on a CPU.
#include "jax/cpu_reference.h"
#include "jax/linear.h"
#include "jax/plan_cache.h"
#include "jax/xla_threads.h"

namespace jax = flashmask::jax;

namespace {

std::shared_ptr<const flashmask::Plan> plan_of(const jax::Call& call, flashmask::Executor& executor) {
  return jax::attention_plan(jax::PlanKey::on_cpu(call), [&]() -> jax::CachedPlan {
    const flashmask::Mask mask = jax::read_mask(call, executor);
    return {std::make_shared<const flashmask::Plan>(flashmask::plan(mask, call.problem, call.options, executor)),
            call.mask.bytes.size()};
  });
}

flashmask::Execution execution_of(const jax::Call& call, flashmask::Executor& executor) {
  return {.executor = &executor, .dropout = jax::dropout_state(call)};
}

}  // namespace

/// Plans of a CPU are found by their masks' contents: there is nothing to make.
extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_plan_cpu(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame&) {});
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_forward_cpu(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::Call call = jax::read_call(from, {});
    const auto tensors = jax::forward_tensors(call, from);
    jax::XlaThreads threads(from);
    if (call.double_precision) return jax::reference_forward(call, tensors, threads.executor());
    flashmask::forward(*plan_of(call, threads.executor()), tensors, execution_of(call, threads.executor()));
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_backward_cpu(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::Call call = jax::read_call(from, {});
    const auto tensors = jax::backward_tensors(call, from);
    jax::XlaThreads threads(from);
    if (call.double_precision) return jax::reference_backward(call, tensors, threads.executor());
    flashmask::backward(*plan_of(call, threads.executor()), tensors, execution_of(call, threads.executor()));
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_linear_forward_cpu(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::LinearCall call = jax::read_linear_call(from, {});
    const auto tensors = jax::linear_forward_tensors(call, from);
    jax::XlaThreads threads(from);
    flashmask::linear_forward(*jax::linear_plan_of(call), tensors, {.executor = &threads.executor()});
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_linear_backward_cpu(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::LinearCall call = jax::read_linear_call(from, {});
    const auto tensors = jax::linear_backward_tensors(call, from);
    jax::XlaThreads threads(from);
    flashmask::linear_backward(*jax::linear_plan_of(call), tensors, {.executor = &threads.executor()});
  });
}
