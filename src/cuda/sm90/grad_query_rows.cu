#include "cuda/sm90/grad_query_rows.h"
#include "cuda/sm90/store_rows.cuh"
#include "cuda/status.h"

namespace flashmask::cuda::sm90 {
namespace {

constexpr int kThreads = 256;  // two groups, as the column kernel has

struct GradQueries {
  void* grad_q;
  std::int64_t batch, row, head;  // strides in elements
  const float* sums;
  int padded_row_tiles, query_length, query_heads, head_dim;
  float scale;
};

/// A block takes what one tile of 64 × 128 or 128 × 64 left, its threads what theirs of the column kernel added.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) write_grad_queries(const GradQueries queries) {
  constexpr int kRows = 64 * 128 / kHeadDim, kSums = 32;
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const auto* sums = reinterpret_cast<const float4*>(queries.sums) +
                     static_cast<std::int64_t>(blockIdx.x) * (kRows * kHeadDim / 4) + group * kSums / 4 * 128 + thread;
  float values[kSums];
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    const float4 four = __ldg(sums + i * 128);
    values[4 * i] = four.x;
    values[4 * i + 1] = four.y;
    values[4 * i + 2] = four.z;
    values[4 * i + 3] = four.w;
  }
  const int flat_head = blockIdx.x / queries.padded_row_tiles, row_tile = blockIdx.x % queries.padded_row_tiles;
  const std::int64_t batch = flat_head / queries.query_heads, head = flat_head % queries.query_heads;
  const int first_row = kRows == 128 ? group * 64 : 0, first_column = kRows == 128 ? 0 : group * 64;
  T* const out = static_cast<T*>(queries.grad_q) + batch * queries.batch + head * queries.head + first_column;
  store_rows(values, {queries.scale, queries.scale}, out, queries.row,
             row_tile * kRows + first_row + thread / 32 * 16 + thread % 32 / 4, queries.query_length,
             queries.head_dim - first_column);
}

template <class T>
void launch(const GradQueries& queries, unsigned blocks, int head_dim, cudaStream_t stream) {
  if (head_dim == 64)
    write_grad_queries<T, 64><<<blocks, kThreads, 0, stream>>>(queries);
  else
    write_grad_queries<T, 128><<<blocks, kThreads, 0, stream>>>(queries);
  check(cudaGetLastError(), "backward: write_grad_queries");
}

}  // namespace

void launch_grad_query_rows(const Problem& problem, const TensorView& grad_q, const BackwardWorkspace& workspace,
                            int head_dim, cudaStream_t stream) {
  const std::int64_t tile_rows = 64 * 128 / head_dim, tiles = workspace.rows.padded / tile_rows;
  const GradQueries queries{.grad_q = grad_q.data,
                            .batch = grad_q.strides[0],
                            .row = grad_q.strides[1],
                            .head = grad_q.strides[2],
                            .sums = workspace.query_sums,
                            .padded_row_tiles = static_cast<int>(tiles),
                            .query_length = static_cast<int>(problem.query_length),
                            .query_heads = static_cast<int>(problem.query_heads),
                            .head_dim = static_cast<int>(problem.head_dim),
                            .scale = problem.softmax_scale()};
  const auto blocks = static_cast<unsigned>(problem.batch * problem.query_heads * tiles);
  if (problem.dtype == DType::bf16)
    launch<__nv_bfloat16>(queries, blocks, head_dim, stream);
  else
    launch<__half>(queries, blocks, head_dim, stream);
}

}  // namespace flashmask::cuda::sm90
