// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/formula/formula_kernels.cuh"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"

namespace flashmask {
namespace cuda {
namespace {

constexpr unsigned kClearingBlocks = 32;

unsigned blocks_of(std::int64_t items, int threads) { return static_cast<unsigned>((items + threads - 1) / threads); }

void clear(std::int32_t* numbers, std::size_t count, cudaStream_t stream) {
  if (count > 0) check(cudaMemsetAsync(numbers, 0, count * sizeof(*numbers), stream), "find_ranges: clearing counts");
}

/// Makes the trees and the tables.
void prepare(const DeviceFormula& formula, cudaStream_t stream) {
  const auto planes = static_cast<unsigned>(formula.sizes.planes);
  const unsigned numbers = formula.number_count, groups = formula.group_count;
  const unsigned blocks = blocks_of(formula.sizes.places, kRowThreads);
  if (numbers == 0) return;
  clear(formula.runs, groups * static_cast<std::size_t>(planes), stream);
  read_rows<<<dim3(blocks, planes, numbers + groups), kRowThreads, 0, stream>>>(formula);
  check(cudaGetLastError(), "find_ranges: read_rows");
  if (groups > 0 || formula.sizes.places > kRowThreads) {
    const unsigned clearing = groups > 0 ? std::min(blocks, kClearingBlocks) : 1;
    finish_trees<<<dim3(clearing, planes, numbers + groups), kRowThreads, 0, stream>>>(formula);
    check(cudaGetLastError(), "find_ranges: finish_trees");
  }
  if (groups == 0) return;
  insert_runs<<<dim3(blocks_of(formula.sizes.rows, kRowThreads), planes, groups), kRowThreads, 0, stream>>>(formula);
  check(cudaGetLastError(), "find_ranges: insert_runs");
}

}  // namespace
}  // namespace cuda

std::size_t formula_workspace(const Formula& formula) {
  Preparation made = cuda::prepared_for_gpu(formula);
  return cuda::Layout(made, nullptr).bytes();
}

void find_ranges_on_gpu(const Formula& formula, std::int32_t* ranges, std::int32_t* found, void* workspace,
                        Device device, void* stream) {
  const cuda::CurrentDevice current(device);
  Preparation made = cuda::prepared_for_gpu(formula);
  const cuda::Layout layout(made, workspace);
  const cuda::DeviceFormula on_device = cuda::on_device(made, layout.runs, found);
  const auto on = static_cast<cudaStream_t>(stream);
  cuda::clear(found, 1, on);
  cuda::prepare(on_device, on);
  const dim3 grid(cuda::blocks_of(made.sizes.columns, cuda::kColumnThreads), static_cast<unsigned>(made.sizes.planes));
  cuda::find_columns<<<grid, cuda::kColumnThreads, 0, on>>>(on_device, formula.visible, formula.slots, ranges);
  cuda::check(cudaGetLastError(), "find_ranges: find_columns");
}

}  // namespace flashmask
