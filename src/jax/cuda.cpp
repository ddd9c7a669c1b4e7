// SPDX-License-Identifier: Apache-2.0
// What XLA calls on an NVIDIA GPU, and when it compiles for one.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "flashmask/builders.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "jax/device_memory.h"
#include "jax/linear.h"
#include "jax/plan_cache.h"
#include "plan/copy_to_host.h"

namespace jax = flashmask::jax;
using flashmask::Direction;
using flashmask::Execution;
using flashmask::Plan;
using flashmask::PlanPlace;

namespace {

/// Calls use(source) with the mask of a call as plan() and plan_bytes() take it.
template <typename Use>
auto with_mask(const jax::Call& call, Use&& use) {
  const jax::MaskOperand& mask = call.mask;
  switch (mask.kind) {
    case jax::MaskKind::row_indices:
      return use(flashmask::DeviceRowIndices{
          mask.row_indices().data(), mask.shape, mask.vectors, mask.causal, {}, mask.most_documents});
    case jax::MaskKind::bits:
      return use(flashmask::DevicePackedMask{mask.bits().data(), mask.shape});
    default:
      return use(flashmask::masks::full(call.problem.query_length, call.problem.key_length));
  }
}

std::size_t plan_bytes(const jax::Call& call) {
  return with_mask(call, [&](const auto& mask) { return flashmask::plan_bytes(mask, call.problem, call.options); });
}

Plan make_plan(const jax::Call& call, const PlanPlace& place) {
  return with_mask(call, [&](const auto& mask) { return flashmask::plan(mask, call.problem, place, call.options); });
}

/// A copy of a call's mask, for which the stream is waited for.
flashmask::Mask mask_on_host(jax::Call call, void* stream) {
  const auto copy = flashmask::copy_to_host(call.device, stream, call.mask.bytes);
  call.mask.bytes = copy;
  return jax::read_mask(call, flashmask::default_executor());
}

/// Makes a plan in memory of the library.
template <typename AnyMask>
jax::CachedPlan plan_to_keep(const AnyMask& mask, const jax::Call& call, void* stream) {
  struct Kept {
    std::shared_ptr<void> memory;
    Plan plan;
  };
  const std::size_t bytes = flashmask::plan_bytes(mask, call.problem, call.options);
  auto memory = flashmask::device_memory(call.device, stream, bytes);
  Plan plan = flashmask::plan(mask, call.problem, {stream, memory.get(), bytes}, call.options);
  const auto kept = std::make_shared<const Kept>(Kept{std::move(memory), std::move(plan)});
  return {{kept, &kept->plan}, bytes};
}

/// The plan of a mask that has a name. It serves one stream only, in whose order it is made, used and freed. The
/// documents of an invariant one are found on the host.
std::shared_ptr<const Plan> kept_plan(const jax::Call& call, void* stream) {
  return jax::attention_plan(jax::PlanKey::on_gpu(call, stream), [&] {
    if (call.options.invariant) return plan_to_keep(mask_on_host(call, stream), call, stream);
    return with_mask(call, [&](const auto& mask) { return plan_to_keep(mask, call, stream); });
  });
}

/// Calls run(plan, execution) on XLA's stream. Nothing waits for the device.
template <typename Run>
void on_stream(const jax::Call& call, const jax::Frame& frame, Direction direction, Run&& run) {
  void* const stream = jax::stream_of(frame);
  std::optional<jax::Scratch> plan_memory;
  std::shared_ptr<const Plan> plan;
  if (call.mask_name != decltype(call.mask_name){}) {
    plan = kept_plan(call, stream);
  } else if (!call.plan.empty()) {
    plan = std::make_shared<const Plan>(make_plan(call, {stream, call.plan.data(), call.plan.size(), true}));
  } else {
    const std::size_t bytes = plan_bytes(call);
    plan_memory.emplace(frame, bytes);
    plan = std::make_shared<const Plan>(make_plan(call, {stream, plan_memory->data(), bytes}));
  }
  const std::size_t bytes = plan->workspace_bytes(direction, 1);
  const jax::Scratch workspace(frame, bytes);
  run(*plan, Execution{.workspace = workspace.data(),
                       .workspace_bytes = bytes,
                       .stream = stream,
                       .dropout_on_device = reinterpret_cast<const std::uint64_t*>(call.dropout_words)});
}

/// Calls run(plan, execution) of a call of linear attention on XLA's stream, with the memory that it needs.
template <typename Tensors, typename Run>
void on_stream(const jax::LinearCall& call, const jax::Frame& frame, const Tensors& tensors, Run&& run) {
  const auto plan = jax::linear_plan_of(call);
  const std::size_t bytes = flashmask::linear_workspace_bytes(*plan, tensors);
  const jax::Scratch workspace(frame, bytes);
  run(*plan, Execution{.workspace = workspace.data(), .workspace_bytes = bytes, .stream = jax::stream_of(frame)});
}

// What is refused when a program is compiled for a GPU.

void check_dtype(const jax::Frame& from) {
  constexpr std::array<const char*, 4> kDTypes = {"float32", "bfloat16", "float16", "float64"};
  const auto dtype = static_cast<std::size_t>(from.integer("dtype"));
  if (dtype == 1 || dtype == 2) return;
  throw flashmask::Error(flashmask::Status::unsupported,
                         std::string("flashmask.jax: q, k and v are ") +
                             (dtype < kDTypes.size() ? kDTypes[dtype] : "of an unknown dtype") +
                             " and the program is compiled for a GPU; cast them to bfloat16 or float16, or compute "
                             "on a CPU");
}

/// Refuses an invariant call whose documents neither the host nor the GPU can find.
void check_documents(const jax::Frame& from) {
  const bool named = from.integer("mask_name_high") != 0 || from.integer("mask_name_low") != 0;
  if (!from.flag("invariant") || !from.flag("has_mask") || named || from.integer("most_documents") > 0) return;
  throw flashmask::Error(
      flashmask::Status::unsupported,
      "flashmask.jax: invariant=True came beside a mask that is traced, or a part of a mask, and the "
      "program is compiled for a GPU, where it must be known at most how many documents there are: "
      "give RowIndices most_documents, as from_cu_seqlens does inside jit, or one Mask of "
      "flashmask.masks for all batch entries and heads");
}

}  // namespace

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_instantiate_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](const jax::Frame& from) {
    check_dtype(from);
    check_documents(from);
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_linear_instantiate_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](const jax::Frame& from) { check_dtype(from); });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_plan_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::Call call = jax::read_plan_call(from, jax::device_of(from));
    make_plan(call, {jax::stream_of(from), call.plan.data(), call.plan.size()});
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_forward_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::Call call = jax::read_call(from, jax::device_of(from));
    const auto tensors = jax::forward_tensors(call, from);
    on_stream(call, from, Direction::forward,
              [&](const Plan& plan, const Execution& where) { flashmask::forward(plan, tensors, where); });
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_backward_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::Call call = jax::read_call(from, jax::device_of(from));
    const auto tensors = jax::backward_tensors(call, from);
    on_stream(call, from, Direction::backward,
              [&](const Plan& plan, const Execution& where) { flashmask::backward(plan, tensors, where); });
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_linear_forward_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::LinearCall call = jax::read_linear_call(from, jax::device_of(from));
    const auto tensors = jax::linear_forward_tensors(call, from);
    on_stream(call, from, tensors, [&](const flashmask::LinearPlan& plan, const Execution& where) {
      flashmask::linear_forward(plan, tensors, where);
    });
  });
}

extern "C" FLASHMASK_API XLA_FFI_Error* flashmask_jax_linear_backward_cuda(XLA_FFI_CallFrame* frame) {
  return jax::handle(frame, [](jax::Frame& from) {
    const jax::LinearCall call = jax::read_linear_call(from, jax::device_of(from));
    const auto tensors = jax::linear_backward_tensors(call, from);
    on_stream(call, from, tensors, [&](const flashmask::LinearPlan& plan, const Execution& where) {
      flashmask::linear_backward(plan, tensors, where);
    });
  });
}
