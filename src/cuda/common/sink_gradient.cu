// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/sink_gradient.h"
#include "cuda/common/views.h"
#include "cuda/instructions/arithmetic.cuh"
#include "cuda/runtime/status.h"
#include "cuda/views/scores.h"

namespace flashmask::cuda {
namespace {

constexpr int kThreads = 256;

struct Arguments {
  SinkView sinks, gradient;
  BackwardStatistics rows;
  float* sums;  // [batch, query heads, pieces]
  int batch, query_heads, query_length, pieces;
};

/// Sums over the threads of a block; only thread 0 returns the sum.
__device__ __forceinline__ float sum_of_block(float own) {
  __shared__ float of_warps[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) own += __shfl_xor_sync(~0U, own, distance);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; threadIdx.x == 0 && warp < kThreads / 32; ++warp) sum += of_warps[warp];
  return sum;
}

template <class T>
__device__ __forceinline__ void store(const SinkView& gradient, std::int64_t place, float value) {
  if (gradient.wide)
    static_cast<float*>(const_cast<void*>(gradient.data))[place] = value;
  else
    static_cast<T*>(const_cast<void*>(gradient.data))[place] = static_cast<T>(value);
}

/// Each block has kSinkRows rows of a head. Sinks of single rows are done here; for sinks of whole heads each block
/// leaves a sum.
template <class T>
__global__ void __launch_bounds__(kThreads) differentiate_rows_of_sinks(const Arguments arguments) {
  const int flat_head = blockIdx.x / arguments.pieces, piece = blockIdx.x % arguments.pieces;
  const int batch = flat_head / arguments.query_heads, head = flat_head % arguments.query_heads;
  const bool of_rows = arguments.sinks.row != 0;
  const std::int64_t first = flat_head * arguments.rows.padded;
  float sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < kSinkRows; i += kThreads) {
    const int row = piece * kSinkRows + i;
    if (row >= arguments.query_length) break;
    const float weight = exp2_approximate(arguments.sinks.at<T>(batch, head, row) * kLog2E -
                                          __ldg(arguments.rows.lse_log2 + first + row));
    const float gradient = -weight * __ldg(arguments.rows.dot + first + row);
    if (of_rows)
      store<T>(arguments.gradient,
               batch * arguments.gradient.batch + head * arguments.gradient.head + row * arguments.gradient.row,
               gradient);
    sum += gradient;
  }
  if (of_rows) return;
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) arguments.sums[blockIdx.x] = sum;
}

/// Each block adds up one head: the sums of its pieces in all batch entries.
template <class T>
__global__ void __launch_bounds__(kThreads) add_pieces_of_sinks(const Arguments arguments) {
  const int head = blockIdx.x, count = arguments.batch * arguments.pieces;
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const std::int64_t flat_head = i / arguments.pieces * arguments.query_heads + head;
    sum += arguments.sums[flat_head * arguments.pieces + i % arguments.pieces];
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) store<T>(arguments.gradient, head * arguments.gradient.head, sum);
}

template <class T>
void launch(const Arguments& arguments, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(arguments.query_heads);
  const unsigned blocks = static_cast<unsigned>(arguments.batch) * heads * static_cast<unsigned>(arguments.pieces);
  differentiate_rows_of_sinks<T><<<blocks, kThreads, 0, stream>>>(arguments);
  check(cudaGetLastError(), "backward: differentiate_rows_of_sinks");
  if (arguments.sinks.row != 0) return;
  add_pieces_of_sinks<T><<<heads, kThreads, 0, stream>>>(arguments);
  check(cudaGetLastError(), "backward: add_pieces_of_sinks");
}

}  // namespace

void launch_sink_gradient(const Problem& problem, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          cudaStream_t stream) {
  if (!tensors.grad_sinks.present()) return;
  const Arguments arguments{.sinks = sink_view(tensors.sinks),
                            .gradient = sink_view(tensors.grad_sinks),
                            .rows = workspace.rows,
                            .sums = workspace.sink_sums,
                            .batch = static_cast<int>(problem.batch),
                            .query_heads = static_cast<int>(problem.query_heads),
                            .query_length = static_cast<int>(problem.query_length),
                            .pieces = static_cast<int>(workspace.sink_pieces)};
  if (problem.dtype == DType::bf16)
    launch<__nv_bfloat16>(arguments, stream);
  else
    launch<__half>(arguments, stream);
}

}  // namespace flashmask::cuda
