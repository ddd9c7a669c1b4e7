#include <cmath>

#include "cuda/sm90/ptx.h"
#include "cuda/sm90/row_statistics.h"
#include "cuda/status.h"

namespace flashmask::cuda::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;  // of a block

struct Rows {
  const void *o, *grad_o;
  const float *lse, *grad_lse;                                                 // grad_lse: null where there is none
  std::int64_t o_batch, o_row, o_head, grad_o_batch, grad_o_row, grad_o_head;  // strides in elements
  std::int64_t lse_batch, lse_head, grad_lse_batch, grad_lse_head;
  int query_length, query_heads, value_dim;
  RowStatistics out;
  float* query_sums;
  int* counters;
  int counter_count;
};

template <class T>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
  const std::uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<T>(left[i]), y = unpack<T>(right[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

/// A block takes 64 rows of a head: kDim / 8 threads a row, 16 bytes a thread.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) compute_row_statistics(const Rows rows) {
  constexpr int kLanes = kDim / 8, kRowsAtOnce = kThreads / kLanes, kTurns = kRows / kRowsAtOnce;
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < rows.counter_count; i += kThreads) rows.counters[i] = 0;
  const int blocks = static_cast<int>(rows.out.padded) / kRows, flat_head = blockIdx.x / blocks;
  const std::int64_t batch = flat_head / rows.query_heads, head = flat_head % rows.query_heads;
  const int first = blockIdx.x % blocks * kRows;
  const int column = threadIdx.x % kLanes * 8;
  const T* const o = static_cast<const T*>(rows.o) + batch * rows.o_batch + head * rows.o_head + column;
  const T* const grad_o =
      static_cast<const T*>(rows.grad_o) + batch * rows.grad_o_batch + head * rows.grad_o_head + column;
  uint4 values[kTurns] = {}, gradients[kTurns] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int row = first + turn * kRowsAtOnce + threadIdx.x / kLanes;
    if (row >= rows.query_length || column >= rows.value_dim) continue;
    values[turn] = __ldg(reinterpret_cast<const uint4*>(o + row * rows.o_row));
    gradients[turn] = __ldg(reinterpret_cast<const uint4*>(grad_o + row * rows.grad_o_row));
  }
  if (rows.query_sums != nullptr) {
    auto* sums = reinterpret_cast<float4*>(rows.query_sums + static_cast<std::int64_t>(blockIdx.x) * kRows * kDim);
#pragma unroll
    for (int i = 0; i < kRows * kDim / 4 / kThreads; ++i) sums[i * kThreads + threadIdx.x] = {0, 0, 0, 0};
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    float sum = dot<T>(values[turn], gradients[turn]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    const int row = first + turn * kRowsAtOnce + threadIdx.x / kLanes;
    if (threadIdx.x % kLanes != 0) continue;
    const bool exists = row < rows.query_length;
    const float lse = exists ? rows.lse[batch * rows.lse_batch + head * rows.lse_head + row] : -INFINITY;
    const bool sees = lse != -INFINITY;
    if (sees && rows.grad_lse != nullptr)
      sum -= rows.grad_lse[batch * rows.grad_lse_batch + head * rows.grad_lse_head + row];
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kRows + row - first;
    rows.out.lse_log2[at] = sees ? lse * 1.44269504088896F : INFINITY;
    rows.out.dot[at] = sees ? sum : 0;
  }
}

template <class T>
void launch(const Rows& rows, unsigned blocks, int head_dim, cudaStream_t stream) {
  if (head_dim == 64)
    compute_row_statistics<T, 64><<<blocks, kThreads, 0, stream>>>(rows);
  else if (head_dim == 128)
    compute_row_statistics<T, 128><<<blocks, kThreads, 0, stream>>>(rows);
  else
    compute_row_statistics<T, 256><<<blocks, kThreads, 0, stream>>>(rows);
  check(cudaGetLastError(), "backward: compute_row_statistics");
}

}  // namespace

void launch_row_statistics(const Problem& problem, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                           int head_dim, cudaStream_t stream) {
  const auto &o = tensors.o, &grad_o = tensors.grad_o, &lse = tensors.lse, &grad_lse = tensors.grad_lse;
  const Rows rows{.o = o.data,
                  .grad_o = grad_o.data,
                  .lse = static_cast<const float*>(lse.data),
                  .grad_lse = grad_lse.present() ? static_cast<const float*>(grad_lse.data) : nullptr,
                  .o_batch = o.strides[0],
                  .o_row = o.strides[1],
                  .o_head = o.strides[2],
                  .grad_o_batch = grad_o.strides[0],
                  .grad_o_row = grad_o.strides[1],
                  .grad_o_head = grad_o.strides[2],
                  .lse_batch = lse.strides[0],
                  .lse_head = lse.strides[1],
                  .grad_lse_batch = grad_lse.strides[0],
                  .grad_lse_head = grad_lse.strides[1],
                  .query_length = static_cast<int>(problem.query_length),
                  .query_heads = static_cast<int>(problem.query_heads),
                  .value_dim = static_cast<int>(problem.value_dim),
                  .out = workspace.rows,
                  .query_sums = workspace.query_sums,
                  .counters = workspace.counters,
                  .counter_count = workspace.counter_count};
  const auto blocks = static_cast<unsigned>(problem.batch * problem.query_heads * workspace.rows.padded / kRows);
  if (problem.dtype == DType::bf16)
    launch<__nv_bfloat16>(rows, blocks, head_dim, stream);
  else
    launch<__half>(rows, blocks, head_dim, stream);
}

}  // namespace flashmask::cuda::sm90
