// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/common/row_statistics.cuh"
#include "cuda/common/row_statistics.h"
#include "cuda/common/token_units.cuh"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"

namespace flashmask::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;    // rows that one block takes at once
constexpr int kBlocks = 32;  // per multiprocessor

struct StatisticsArguments {
  const void *o, *grad_o;
  std::int64_t o_batch, o_row, o_head, grad_o_batch, grad_o_row, grad_o_head;  // strides in elements
  LseView lse;
  int query_length, query_heads, value_dim;
  int heads;  // over all batch entries
  BackwardStatistics out;
  TileChoice choice;
  DeviceUnits query_units;
};

/// Finds the statistics of a head's 64 rows from place `begin` on with one block: up to a warp of threads per row,
/// 16 bytes per thread and piece of the row.
template <class T, int kDim>
__device__ __forceinline__ void find_statistics(const StatisticsArguments& rows, int flat_head, int begin) {
  constexpr int kPieces = kDim <= 256 ? 1 : kDim / 256, kPieceDim = kDim / kPieces;
  constexpr int kLanes = kPieceDim / 8, kRowsAtOnce = kThreads / kLanes, kRounds = kRows / kRowsAtOnce;
  const std::int64_t batch = flat_head / rows.query_heads, head = flat_head % rows.query_heads;
  const TileTokens tokens = tokens_at(rows.query_units, static_cast<int>(batch), begin);
  const int first = tokens.first, end = tokens.end;
  const int column = threadIdx.x % kLanes * 8;
  const T* const o = static_cast<const T*>(rows.o) + batch * rows.o_batch + head * rows.o_head + column;
  const T* const grad_o =
      static_cast<const T*>(rows.grad_o) + batch * rows.grad_o_batch + head * rows.grad_o_head + column;
  uint4 values[kRounds][kPieces] = {}, gradients[kRounds][kPieces] = {};
#pragma unroll
  for (int i = 0; i < kRounds * kPieces; ++i) {
    const int round = i / kPieces, piece = i % kPieces, dim = piece * kPieceDim;
    const int row = first + round * kRowsAtOnce + threadIdx.x / kLanes;
    if (row >= end || column + dim >= rows.value_dim) continue;
    values[round][piece] = __ldg(reinterpret_cast<const uint4*>(o + row * rows.o_row + dim));
    gradients[round][piece] = __ldg(reinterpret_cast<const uint4*>(grad_o + row * rows.grad_o_row + dim));
  }
  // Lane i of a row finishes the row of round i; it loads that row's lse while o and its gradient are still in flight.
  const int round = threadIdx.x % kLanes, own_row = first + round * kRowsAtOnce + threadIdx.x / kLanes;
  const RowLse lse(rows.lse, static_cast<int>(batch), static_cast<int>(head),
                   round < kRounds && own_row < end ? own_row : rows.query_length);
  float own = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    float sum = dot<T>(values[i][0], gradients[i][0]);
#pragma unroll
    for (int piece = 1; piece < kPieces; ++piece) sum += dot<T>(values[i][piece], gradients[i][piece]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    if (round == i) own = sum;
  }
  if (round < kRounds) lse.store(rows.out, flat_head * rows.out.padded + begin + own_row - first, own);
}

/// A limited number of blocks loops over all rows: where the other launch has the work, only few blocks start in vain.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) compute_row_statistics(const StatisticsArguments rows) {
  if (!rows.choice.has_the_work()) return;
  const int in_head = static_cast<int>(rows.out.padded) / kRows;
  for (int at = blockIdx.x; at < rows.heads * in_head; at += gridDim.x)
    find_statistics<T, kDim>(rows, at / in_head, at % in_head * kRows);
}

template <class T>
void launch(const StatisticsArguments& rows, int head_dim, cudaStream_t stream) {
  const std::int64_t pieces = rows.heads * rows.out.padded / kRows;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(pieces, multiprocessors() * kBlocks));
  if (head_dim <= 64)
    compute_row_statistics<T, 64><<<blocks, kThreads, 0, stream>>>(rows);
  else if (head_dim == 128)
    compute_row_statistics<T, 128><<<blocks, kThreads, 0, stream>>>(rows);
  else if (head_dim <= 256)
    compute_row_statistics<T, 256><<<blocks, kThreads, 0, stream>>>(rows);
  else
    compute_row_statistics<T, 512><<<blocks, kThreads, 0, stream>>>(rows);
  check(cudaGetLastError(), "backward: compute_row_statistics");
}

}  // namespace

void launch_row_statistics(const Plan& plan, const BackwardTensors& tensors, const TileChoice& choice,
                           const BackwardWorkspace& workspace, int head_dim, cudaStream_t stream) {
  const Problem& problem = plan.problem();
  const auto &o = tensors.o, &grad_o = tensors.grad_o;
  const StatisticsArguments rows{.o = o.data,
                                 .grad_o = grad_o.data,
                                 .o_batch = o.strides[0],
                                 .o_row = o.strides[1],
                                 .o_head = o.strides[2],
                                 .grad_o_batch = grad_o.strides[0],
                                 .grad_o_row = grad_o.strides[1],
                                 .grad_o_head = grad_o.strides[2],
                                 .lse = lse_view(problem, tensors),
                                 .query_length = static_cast<int>(problem.query_length),
                                 .query_heads = static_cast<int>(problem.query_heads),
                                 .value_dim = static_cast<int>(problem.value_dim),
                                 .heads = static_cast<int>(problem.batch * problem.query_heads),
                                 .out = workspace.rows,
                                 .choice = choice,
                                 .query_units = query_units(plan)};
  if (problem.dtype == DType::bf16)
    launch<__nv_bfloat16>(rows, head_dim, stream);
  else
    launch<__half>(rows, head_dim, stream);
}

}  // namespace flashmask::cuda
