// SPDX-License-Identifier: Apache-2.0
#include "kit/promises.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "flashmask/builders.h"
#include "flashmask/kernels.h"
#include "kit/host_tensor.h"
#include "kit/placed_attention.h"

namespace flashmask::check {
namespace {

constexpr std::int64_t kFirst = 300, kSecond = 212;

Problem problem_of(DType dtype, Device device, std::int64_t tokens) {
  return {.query_length = tokens,
          .key_length = tokens,
          .query_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .value_dim = 64,
          .dtype = dtype,
          .device = device};
}

/// o and the gradients of q, k and v of all tokens, in this order.
using Results = std::array<std::vector<double>, 4>;

Results results_of(const AttentionTensors& tensors) {
  return {tensors.o.values(), tensors.grad_q.values(), tensors.grad_k.values(), tensors.grad_v.values()};
}

Results run(const Mask& mask, const Problem& problem, AttentionTensors& tensors, const PlanOptions& options,
            Executor& executor = default_executor()) {
  tensors.clear_outputs();
  PlacedPlan placed(mask, problem, options);
  const PlacedTensors on_device(tensors, problem.device);
  const Execution execution{.executor = problem.device.type == DeviceType::cpu ? &executor : nullptr};
  placed.forward(on_device.forward(), execution);
  BackwardTensors backward = on_device.backward();
  backward.grad_lse = {};
  placed.backward(backward, execution);
  on_device.fetch();
  return results_of(tensors);
}

/// Copies the inputs of tokens from `begin` on.
void copy_from(const HostTensor& whole, std::int64_t begin, HostTensor& part) {
  for (std::int64_t i = 0; i < part.size(); ++i) part.set(i, whole.at(begin * whole.stride(1) + i));
}

/// Whether the second of two documents has the bits that it has alone.
bool is_invariant(DType dtype) {
  const Problem whole = problem_of(dtype, {}, kFirst + kSecond), alone = problem_of(dtype, {}, kSecond);
  AttentionTensors tensors(whole, 1), part(alone, 2);
  const PlanOptions invariant{.invariant = true};
  const Results packed = run(masks::causal_document({kFirst, kSecond}, kFirst + kSecond), whole, tensors, invariant);
  copy_from(tensors.q, kFirst, part.q);
  copy_from(tensors.k, kFirst, part.k);
  copy_from(tensors.v, kFirst, part.v);
  copy_from(tensors.grad_o, kFirst, part.grad_o);
  const Results by_itself = run(masks::causal(kSecond, kSecond), alone, part, invariant);
  for (std::size_t i = 0; i < packed.size(); ++i)
    if (!std::ranges::equal(std::span(packed[i]).last(by_itself[i].size()), by_itself[i])) return false;
  return true;
}

bool computes(Device device, DType dtype) {
  const std::vector<KernelInfo> all = kernels();
  return std::ranges::any_of(all, [&](const KernelInfo& kernel) {
    return kernel.device == device.type && kernel.dtype == dtype && why_not(kernel).empty();
  });
}

void check_dtype(Device device, DType dtype, std::vector<Promise>& promises) {
  const bool on_cpu = device.type == DeviceType::cpu;
  const auto note = [&](const char* what, bool holds) {
    promises.push_back({what, on_cpu ? "cpu" : "cuda", dtype, holds});
  };
  const Problem problem = problem_of(dtype, device, kFirst + kSecond);
  const Mask mask = masks::causal_document({kFirst, kSecond}, kFirst + kSecond);
  AttentionTensors tensors(problem, 1);
  const PlanOptions usual{.deterministic = true};
  const Results first = run(mask, problem, tensors, usual);
  note("the same bits in a second run", run(mask, problem, tensors, usual) == first);
  note("the same bits where every tile is visited",
       run(mask, problem, tensors, {.visit = Visit::all, .deterministic = true}) == first);
  if (!on_cpu) return;
  note("the same bits with one thread", run(mask, problem, tensors, usual, serial_executor()) == first);
  note("a document has the bits that it has alone, if invariant", is_invariant(dtype));
}

}  // namespace

std::vector<Promise> check_promises(Device device) {
  std::vector<Promise> promises;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    if (computes(device, dtype)) check_dtype(device, dtype, promises);
  return promises;
}

}  // namespace flashmask::check
