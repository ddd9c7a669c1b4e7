// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/formula/device_formula.h"

// Four kernels, whatever the formula: the lower levels of all trees, and how many runs there are; the upper levels, and
// empty tables; the tables; the columns, one per thread. Where conditions compare only tokens' own indices, the last
// alone. blockIdx.y is the plane.
namespace flashmask::cuda {

constexpr int kRowThreads = 256;
constexpr int kColumnThreads = 128;

__device__ inline Plane own_plane(const DeviceFormula& formula) {
  return {blockIdx.y / formula.sizes.heads, blockIdx.y % formula.sizes.heads};
}

/// The lower levels of one tree, above kRowThreads rows.
__device__ inline void make_lower_levels(const DeviceFormula& formula, const RowNumbers& numbers, KeyRange* shared) {
  const std::uint32_t places = static_cast<std::uint32_t>(formula.sizes.places);
  const std::uint32_t first = blockIdx.x * kRowThreads, place = first + threadIdx.x;
  KeyRange* const tree = numbers.tree + 2UL * blockIdx.y * places;
  bool nan = false;
  KeyRange own = beyond_rows();
  if (place < static_cast<std::uint32_t>(formula.sizes.rows)) {
    own.least = own.greatest = key_of(numbers.given, own_plane(formula), place, nan);
  }
  if (nan) atomicMax(formula.found, kNotANumber);
  if (place < places) tree[places + place] = own;
  shared[threadIdx.x] = own;
  for (std::uint32_t level = 1; kRowThreads >> level > 0 && places >> level > 0; ++level) {
    const bool active =
        threadIdx.x < static_cast<unsigned>(kRowThreads) >> level && (first >> level) + threadIdx.x < places >> level;
    __syncthreads();
    if (active) own = joined(shared[2 * threadIdx.x], shared[2 * threadIdx.x + 1]);
    __syncthreads();
    if (!active) continue;
    shared[threadIdx.x] = own;
    tree[((places + first) >> level) + threadIdx.x] = own;
  }
}

/// blockIdx.z is one of the trees, or, behind them, of the groups.
static __global__ void __launch_bounds__(kRowThreads) read_rows(const __grid_constant__ DeviceFormula formula) {
  __shared__ KeyRange shared[kRowThreads];
  if (blockIdx.z < formula.number_count) return make_lower_levels(formula, formula.numbers[blockIdx.z], shared);
  const GroupTables& tables = formula.groups[blockIdx.z - formula.number_count];
  const auto row = static_cast<std::int32_t>(blockIdx.x * kRowThreads + threadIdx.x);
  const bool begins = row < formula.sizes.rows && begins_run(tables, formula.numbers, own_plane(formula), row);
  const int runs = __popc(__ballot_sync(~0U, begins));
  if (threadIdx.x % 32 == 0 && runs > 0) atomicAdd(tables.runs + blockIdx.y, runs);
}

/// blockIdx.z as in read_rows.
static __global__ void __launch_bounds__(kRowThreads) finish_trees(const __grid_constant__ DeviceFormula formula) {
  if (blockIdx.z < formula.number_count) {
    if (blockIdx.x > 0) return;
    const std::uint32_t places = static_cast<std::uint32_t>(formula.sizes.places);
    KeyRange* const tree = formula.numbers[blockIdx.z].tree + 2UL * blockIdx.y * places;
    for (std::uint32_t first = places / kRowThreads / 2; first > 0; first /= 2) {
      for (std::uint32_t node = first + threadIdx.x; node < 2 * first; node += kRowThreads)
        tree[node] = joined(tree[2 * node], tree[2 * node + 1]);
      __syncthreads();
    }
    return;
  }
  const GroupTables& tables = formula.groups[blockIdx.z - formula.number_count];
  const RowGroups groups = groups_of(tables, formula.numbers[tables.numbers], formula.sizes, blockIdx.y);
  const std::uint32_t begin = blockIdx.x * kRowThreads + threadIdx.x, step = gridDim.x * kRowThreads;
  for (std::uint32_t at = begin; at <= groups.slot_mask; at += step) groups.slots[at] = RowGroups::kNone;
  for (std::uint32_t at = begin; at <= groups.node_mask; at += step) {
    groups.nodes[at] = 0;
    groups.children[at] = 0;
  }
}

static __global__ void __launch_bounds__(kRowThreads) insert_runs(const __grid_constant__ DeviceFormula formula) {
  const GroupTables& tables = formula.groups[blockIdx.z];
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x * kRowThreads + threadIdx.x);
  if (row >= formula.sizes.rows || !begins_run(tables, formula.numbers, own_plane(formula), row)) return;
  groups_of(tables, formula.numbers[tables.numbers], formula.sizes, blockIdx.y).insert(row);
}

/// The leaves of a formula in the column of a thread.
struct ColumnLeaves {
  const PlaneFormula& formula;
  ColumnNumber columns[kMostConditions];

  __device__ ColumnLeaves(const PlaneFormula& plane, int conditions, std::int64_t column, bool& nan) : formula(plane) {
    for (int at = 0; at < conditions; ++at) {
      const PreparedCondition& leaf = plane.conditions[at];
      if (leaf.kind <= ConditionKind::disjunction) continue;
      columns[at].key = plane.column_key(leaf, column, nan);
      columns[at].slot = plane.slot_of(leaf, columns[at].key);
    }
  }

  __device__ std::int64_t operator()(int at, std::int32_t row, bool wanted) const {
    return formula.next(formula.conditions[at], columns[at], row, wanted);
  }
};

static __global__ void __launch_bounds__(kColumnThreads)
    find_columns(const __grid_constant__ DeviceFormula formula, bool visible, std::int32_t slots,
                 std::int32_t* ranges) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  std::int32_t found = 0;
  if (column < formula.sizes.columns) {
    const PlaneFormula plane{formula.conditions, formula.numbers, formula.groups, formula.sizes, blockIdx.y};
    bool nan = false;
    const ColumnLeaves leaves(plane, formula.condition_count, column, nan);
    Search search(formula.conditions, formula.sizes.rows, leaves);
    std::int32_t* const own =
        ranges + (blockIdx.y * static_cast<std::int64_t>(formula.sizes.columns) + column) * 2 * slots;
    found = search.find(visible, slots, own);
    if (nan) found = kNotANumber;
  }
  found = __reduce_max_sync(~0U, found);
  if (threadIdx.x % 32 == 0 && found > 0) atomicMax(formula.found, found);
}

}  // namespace flashmask::cuda
