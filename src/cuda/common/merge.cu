// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"
#include "plan/merge.h"

// Each warp merges one row of one head: it finds the row's lse, then each lane sums its columns over the parts.
namespace flashmask {
namespace cuda {
namespace {

constexpr int kWarps = 8;        // per block
constexpr int kMostStacks = 32;  // so that they fit into a kernel's arguments
constexpr int kPartsAtOnce = 8;  // whose rows are loaded together
constexpr unsigned kAll = ~0U;

/// o and lse of a result; strides in elements.
struct Result {
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head, lse_row;
};

/// Parts of one layout that are evenly spaced in memory.
struct Stack {
  Result first;
  std::int64_t o_step, lse_step;  // elements from a part to the next
  int parts;
};

struct Row {
  std::int64_t batch, row, head;
};

struct MergeArguments {
  Stack stacks[kMostStacks];
  int stack_count;
  Result merged;
  MergeExtent extent;
};

struct GradientArguments {
  Result part, grad_part, merged, grad_merged;  // grad_merged.lse: nullptr for a gradient of 0
  MergeExtent extent;
};

/// Returns the row and head that this warp has; a negative batch means none.
__device__ __forceinline__ Row own_row(const MergeExtent& extent) {
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / 32, heads = static_cast<unsigned>(extent.heads),
                 rows = static_cast<unsigned>(extent.rows);
  if (index >= static_cast<unsigned>(extent.batch) * rows * heads) return {-1, 0, 0};
  return {index / heads / rows, index / heads % rows, index % heads};
}

template <class T>
__device__ __forceinline__ T* values_of(const Result& result, const Row& at) {
  return static_cast<T*>(result.o) + at.batch * result.o_batch + at.row * result.o_row + at.head * result.o_head;
}

__device__ __forceinline__ float* lse_of(const Result& result, const Row& at) {
  return result.lse + at.batch * result.lse_batch + at.head * result.lse_head + at.row * result.lse_row;
}

/// The lse of a part, −inf where it saw nothing, for which FlashAttention writes +inf.
__device__ __forceinline__ float part_lse(const float* lse) { return isinf(*lse) ? -INFINITY : *lse; }

/// The weight of a part in a result whose lse is `lse`.
__device__ __forceinline__ float weight(float part, float lse) { return part == -INFINITY ? 0.0F : expf(part - lse); }

/// Calls body(lse) for the parts that are this lane's, in order.
template <class Body>
__device__ __forceinline__ void for_own_parts(const MergeArguments& arguments, const Row& at, const Body& body) {
  int before = 0;
  for (int s = 0; s < arguments.stack_count; ++s) {
    const Stack& stack = arguments.stacks[s];
    const float* const lse = lse_of(stack.first, at);
    for (int part = (lane_index() - before) & 31; part < stack.parts; part += 32)
      body(part_lse(lse + part * stack.lse_step));
    before += stack.parts;
  }
}

/// sum · e^shift is Σ e^lseᵢ: 0 where all are −inf, NaN where one is NaN. Weights are not found from lse itself, which
/// is rounded too coarsely: to 3e-5 where it is 500.
struct Total {
  float shift, sum;

  __device__ __forceinline__ float lse() const { return shift + logf(sum); }
};

__device__ __forceinline__ Total total_of(const MergeArguments& arguments, const Row& at) {
  float largest = -INFINITY, sum = 0;
  for_own_parts(arguments, at, [&](float lse) { largest = fmaxf(largest, lse); });
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, distance));
  const float shift = isinf(largest) ? 0 : largest;
  for_own_parts(arguments, at, [&](float lse) { sum += expf(lse - shift); });
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAll, sum, distance);
  return {shift, sum};
}

/// Neighbouring elements that one instruction loads or stores.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Elements {
  T values[kCount];
};

/// sums += Σ weight · o over the parts of a stack, for kCount columns from `column` on. A row whose weight is 0 is not
/// read.
template <class T, int kCount>
__device__ __forceinline__ void add_parts(const Stack& stack, const Row& at, const Total& total, int column,
                                          float (&sums)[kCount]) {
  const T* const o = values_of<const T>(stack.first, at) + column;
  const float* const lses = lse_of(stack.first, at);
  const float factor = total.sum == 0 ? 0 : 1 / total.sum;
#pragma unroll 1
  for (int first = 0; first < stack.parts; first += kPartsAtOnce) {
    float weights[kPartsAtOnce];
    Elements<T, kCount> rows[kPartsAtOnce];
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i)
      weights[i] =
          first + i < stack.parts ? expf(part_lse(lses + (first + i) * stack.lse_step) - total.shift) * factor : 0;
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i)
      rows[i] = weights[i] == 0 ? Elements<T, kCount>{}
                                : *reinterpret_cast<const Elements<T, kCount>*>(o + (first + i) * stack.o_step);
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i)
      for (int c = 0; c < kCount; ++c) sums[c] = fmaf(weights[i], static_cast<float>(rows[i].values[c]), sums[c]);
  }
}

/// The result may be written over a part: a warp has read all that it needs of a place before it writes there. Told
/// that at least two blocks must fit a multiprocessor, the assembler uses the 80 registers that the kernel needs; left
/// alone it uses 48 and spills.
template <class T, int kCount>
__global__ void __launch_bounds__(32 * kWarps, 2) merge_kernel(const __grid_constant__ MergeArguments arguments) {
  const Row at = own_row(arguments.extent);
  if (at.batch < 0) return;
  const Total total = total_of(arguments, at);
  T* const o = values_of<T>(arguments.merged, at);
#pragma unroll 1
  for (int column = lane_index() * kCount; column < arguments.extent.dim; column += 32 * kCount) {
    float sums[kCount] = {};
    for (int s = 0; s < arguments.stack_count; ++s) add_parts<T, kCount>(arguments.stacks[s], at, total, column, sums);
    Elements<T, kCount> rounded;
    for (int c = 0; c < kCount; ++c) rounded.values[c] = static_cast<T>(sums[c]);
    *reinterpret_cast<Elements<T, kCount>*>(o + column) = rounded;
  }
  __syncwarp();
  if (lane_index() == 0) *lse_of(arguments.merged, at) = total.lse();
}

/// With g the gradient of the merged o: grad_o = w g, grad_lse = w (g · (o of the part − o) + grad of the merged lse).
template <class T>
__global__ void __launch_bounds__(32 * kWarps) merge_backward_kernel(const GradientArguments arguments) {
  const Row at = own_row(arguments.extent);
  if (at.batch < 0) return;
  const float own = weight(part_lse(lse_of(arguments.part, at)), *lse_of(arguments.merged, at));
  const T* const grad_o = values_of<const T>(arguments.grad_merged, at);
  const T *const part_o = values_of<const T>(arguments.part, at), *const o = values_of<const T>(arguments.merged, at);
  T* const out = values_of<T>(arguments.grad_part, at);
  float moved = 0;
  for (int column = lane_index(); column < arguments.extent.dim; column += 32) {
    float gradient = 0;
    if (own != 0) {
      gradient = static_cast<float>(grad_o[column]);
      moved = fmaf(gradient, static_cast<float>(part_o[column]) - static_cast<float>(o[column]), moved);
    }
    out[column] = static_cast<T>(own == 0 ? 0.0F : own * gradient);
  }
  for (int distance = 16; distance > 0; distance /= 2) moved += __shfl_xor_sync(kAll, moved, distance);
  if (lane_index() != 0) return;
  const float grad_lse = arguments.grad_merged.lse == nullptr ? 0 : *lse_of(arguments.grad_merged, at);
  *lse_of(arguments.grad_part, at) = own == 0 ? 0.0F : own * (moved + grad_lse);
}

Result result_of(const TensorView& o, const TensorView& lse) {
  return {o.data,         static_cast<float*>(lse.data),
          o.strides[0],   o.strides[1],
          o.strides[2],   lse.strides[0],
          lse.strides[1], lse.strides[2]};
}

bool same_layout(const Result& a, const Result& b) {
  return a.o_batch == b.o_batch && a.o_row == b.o_row && a.o_head == b.o_head && a.lse_batch == b.lse_batch &&
         a.lse_head == b.lse_head && a.lse_row == b.lse_row;
}

/// Elements between two addresses; 0 also where they are not a whole number of elements apart.
std::int64_t distance(const void* from, const void* to, std::size_t element) {
  const auto bytes =
      static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(to) - reinterpret_cast<std::intptr_t>(from));
  const auto size = static_cast<std::int64_t>(element);
  return bytes % size == 0 ? bytes / size : 0;
}

/// Adds the part to the stack if it lies where the stack's next part would.
bool joins(Stack& stack, const Result& part, std::size_t element) {
  if (!same_layout(stack.first, part)) return false;
  const std::int64_t o_step = distance(stack.first.o, part.o, element);
  const std::int64_t lse_step = distance(stack.first.lse, part.lse, sizeof(float));
  if (stack.parts == 1) {
    if (o_step == 0 || lse_step == 0) return false;
    stack.o_step = o_step;
    stack.lse_step = lse_step;
  } else if (o_step != stack.parts * stack.o_step || lse_step != stack.parts * stack.lse_step) {
    return false;
  }
  ++stack.parts;
  return true;
}

std::vector<Stack> stacks_of(const MergeTensors& tensors) {
  std::vector<Stack> stacks;
  for (const MergePart& each : tensors.parts) {
    const Result part = result_of(each.o, each.lse);
    if (stacks.empty() || !joins(stacks.back(), part, size_in_bytes(tensors.o.dtype)))
      stacks.push_back({part, 0, 0, 1});
  }
  if (std::ssize(stacks) > kMostStacks)
    throw Error(Status::unsupported, "merge: " + std::to_string(stacks.size()) +
                                         " parts lie on the GPU with no even space between them; expected at most " +
                                         std::to_string(kMostStacks) +
                                         ": stack them in one tensor, or merge some first");
  return stacks;
}

/// Whether `count` neighbouring columns can be taken at once everywhere.
bool takes(const MergeArguments& arguments, int count, std::size_t element) {
  const auto fits = [&](const Result& result) {
    return (result.o_batch | result.o_row | result.o_head) % count == 0 &&
           reinterpret_cast<std::uintptr_t>(result.o) % (static_cast<std::size_t>(count) * element) == 0;
  };
  for (int s = 0; s < arguments.stack_count; ++s)
    if (!fits(arguments.stacks[s].first) || arguments.stacks[s].o_step % count != 0) return false;
  return fits(arguments.merged) && arguments.extent.dim % count == 0;
}

unsigned blocks_of(const MergeExtent& extent) {
  const std::int64_t rows = extent.batch * extent.rows * extent.heads;
  constexpr std::int64_t kMostRows = 1LL << 31;
  if (rows > kMostRows)
    throw Error(Status::unsupported, "merge: there are " + std::to_string(rows) +
                                         " rows of all heads; expected at most " + std::to_string(kMostRows) +
                                         ": merge a batch entry at a time");
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

/// Calls run(T()) with the type of a dtype.
template <class Run>
void with_type_of(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::f32:
      return run(float());
    case DType::bf16:
      return run(__nv_bfloat16());
    case DType::f16:
      return run(__half());
  }
}

}  // namespace
}  // namespace cuda

void merge_on_gpu(const MergeTensors& tensors, const MergeExtent& extent, void* stream) {
  using namespace cuda;
  const CurrentDevice current(tensors.o.device);
  MergeArguments arguments{.merged = result_of(tensors.o, tensors.lse), .extent = extent};
  const std::vector<Stack> stacks = stacks_of(tensors);
  std::ranges::copy(stacks, arguments.stacks);
  arguments.stack_count = static_cast<int>(stacks.size());
  with_type_of(tensors.o.dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = takes(arguments, 4, sizeof(T)) ? merge_kernel<T, 4> : merge_kernel<T, 1>;
    kernel<<<blocks_of(extent), 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  });
  check(cudaGetLastError(), "merge");
}

void merge_backward_on_gpu(const MergeGradients& tensors, const MergeExtent& extent, void* stream) {
  using namespace cuda;
  const CurrentDevice current(tensors.o.device);
  for (const MergePartGradients& part : tensors.parts) {
    const GradientArguments arguments{result_of(part.o, part.lse), result_of(part.grad_o, part.grad_lse),
                                      result_of(tensors.o, tensors.lse), result_of(tensors.grad_o, tensors.grad_lse),
                                      extent};
    with_type_of(tensors.o.dtype, [&](auto element) {
      merge_backward_kernel<decltype(element)>
          <<<blocks_of(extent), 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
    });
    check(cudaGetLastError(), "merge_backward");
  }
}

}  // namespace flashmask
