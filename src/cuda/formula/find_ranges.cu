// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/error.h"
#include "mask/formula/preparation.h"

// Four kernels, whatever the formula: the lower levels of all trees, and how many runs there are; the upper levels, and
// empty tables; the tables; the columns, one per thread. Where conditions compare only tokens' own indices, the last
// alone.
namespace flashmask {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumnThreads = 128;
constexpr int kMostConditions = 32, kMostNumbers = 16, kMostGroups = 12;  // what fits into a kernel's arguments
constexpr std::int64_t kMostPlanes = 65535;
constexpr unsigned kClearingBlocks = 32;
constexpr std::size_t kAligned = 256;

/// A formula on the device, passed by value.
struct DeviceFormula {
  PreparedCondition conditions[kMostConditions];
  RowNumbers numbers[kMostNumbers];
  GroupTables groups[kMostGroups];
  SearchSizes sizes;
  std::int32_t condition_count, number_count, group_count;
  std::int32_t* runs;   ///< [groups, planes]
  std::int32_t* found;  ///< how many ranges the busiest column has, or what was found instead
};

__device__ Plane own_plane(const DeviceFormula& formula) {
  return {blockIdx.y / formula.sizes.heads, blockIdx.y % formula.sizes.heads};
}

/// The lower levels of one tree, above kThreads rows.
__device__ void make_lower_levels(const DeviceFormula& formula, const RowNumbers& numbers, KeyRange* shared) {
  const std::uint32_t places = static_cast<std::uint32_t>(formula.sizes.places);
  const std::uint32_t first = blockIdx.x * kThreads, place = first + threadIdx.x;
  KeyRange* const tree = numbers.tree + 2UL * blockIdx.y * places;
  bool nan = false;
  KeyRange own = beyond_rows();
  if (place < static_cast<std::uint32_t>(formula.sizes.rows)) {
    own.least = own.greatest = key_of(numbers.given, own_plane(formula), place, nan);
  }
  if (nan) atomicMax(formula.found, kNotANumber);
  if (place < places) tree[places + place] = own;
  shared[threadIdx.x] = own;
  for (std::uint32_t level = 1; kThreads >> level > 0 && places >> level > 0; ++level) {
    const bool active = threadIdx.x < kThreads >> level && (first >> level) + threadIdx.x < places >> level;
    __syncthreads();
    if (active) own = joined(shared[2 * threadIdx.x], shared[2 * threadIdx.x + 1]);
    __syncthreads();
    if (!active) continue;
    shared[threadIdx.x] = own;
    tree[((places + first) >> level) + threadIdx.x] = own;
  }
}

/// blockIdx.z is one of the trees, or, behind them, of the groups.
__global__ void __launch_bounds__(kThreads) read_rows(const __grid_constant__ DeviceFormula formula) {
  __shared__ KeyRange shared[kThreads];
  if (blockIdx.z < formula.number_count) return make_lower_levels(formula, formula.numbers[blockIdx.z], shared);
  const GroupTables& tables = formula.groups[blockIdx.z - formula.number_count];
  const std::uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  const int begins = __syncthreads_count(row < formula.sizes.rows &&
                                         begins_run(tables, formula.numbers, own_plane(formula), row));
  if (threadIdx.x == 0 && begins > 0) atomicAdd(tables.runs + blockIdx.y, begins);
}

/// blockIdx.z as in read_rows.
__global__ void __launch_bounds__(kThreads) finish_trees(const __grid_constant__ DeviceFormula formula) {
  if (blockIdx.z < formula.number_count) {
    if (blockIdx.x > 0) return;
    const std::uint32_t places = static_cast<std::uint32_t>(formula.sizes.places);
    KeyRange* const tree = formula.numbers[blockIdx.z].tree + 2UL * blockIdx.y * places;
    for (std::uint32_t first = places / kThreads / 2; first > 0; first /= 2) {
      for (std::uint32_t node = first + threadIdx.x; node < 2 * first; node += kThreads)
        tree[node] = joined(tree[2 * node], tree[2 * node + 1]);
      __syncthreads();
    }
    return;
  }
  const GroupTables& tables = formula.groups[blockIdx.z - formula.number_count];
  const RowGroups groups = groups_of(tables, formula.numbers[tables.numbers], formula.sizes, blockIdx.y);
  const std::uint32_t begin = blockIdx.x * kThreads + threadIdx.x, step = gridDim.x * kThreads;
  for (std::uint32_t at = begin; at <= groups.slot_mask; at += step) groups.slots[at] = RowGroups::kNone;
  for (std::uint32_t at = begin; at <= groups.node_mask; at += step) {
    groups.nodes[at] = 0;
    groups.children[at] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) insert_runs(const __grid_constant__ DeviceFormula formula) {
  const GroupTables& tables = formula.groups[blockIdx.z];
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
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

__global__ void __launch_bounds__(kColumnThreads)
    find_columns(const __grid_constant__ DeviceFormula formula, bool visible, std::int32_t slots,
                 std::int32_t* ranges) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  std::int32_t found = 0;
  if (column < formula.sizes.columns) {
    const PlaneFormula plane{formula.conditions, formula.numbers, formula.groups, formula.sizes, blockIdx.y};
    bool nan = false;
    const ColumnLeaves leaves(plane, formula.condition_count, column, nan);
    Search search(formula.conditions, formula.sizes.rows, leaves);
    std::int32_t* const own = ranges + (blockIdx.y * static_cast<std::int64_t>(formula.sizes.columns) + column) * 2 * slots;
    found = search.find(visible, slots, own);
    if (nan) found = kNotANumber;
  }
  found = __reduce_max_sync(~0U, found);
  if (threadIdx.x % 32 == 0 && found > 0) atomicMax(formula.found, found);
}

/// Where the trees and tables of a formula lie in its workspace.
class Layout {
 public:
  Layout(Preparation& made, void* memory) : memory_(static_cast<std::byte*>(memory)) {
    const auto planes = static_cast<std::size_t>(made.sizes.planes), rows = static_cast<std::size_t>(made.sizes.rows);
    const auto levels = static_cast<std::size_t>(RowGroups::levels_of(made.sizes.rows));
    runs = take<std::int32_t>(planes * made.groups.size());
    for (RowNumbers& numbers : made.numbers) numbers.tree = take<KeyRange>(2 * planes * static_cast<std::size_t>(made.sizes.places));
    for (std::size_t i = 0; i < made.groups.size(); ++i) {
      GroupTables& tables = made.groups[i];
      const std::size_t slots = RowGroups::room_for(rows), nodes = RowGroups::room_for(rows * levels);
      tables.slot_room = static_cast<std::int64_t>(slots);
      tables.node_room = static_cast<std::int64_t>(nodes);
      tables.runs = runs + i * planes;
      tables.slots = take<std::int32_t>(planes * slots);
      tables.nodes = take<unsigned long long>(planes * nodes);
      tables.children = take<std::uint32_t>(planes * nodes);
    }
  }

  std::size_t bytes() const { return bytes_; }

  std::int32_t* runs;

 private:
  template <class T>
  T* take(std::size_t count) {
    const std::size_t begin = bytes_;
    bytes_ += (count * sizeof(T) + kAligned - 1) / kAligned * kAligned;
    return reinterpret_cast<T*>(memory_ + begin);
  }

  std::byte* memory_;
  std::size_t bytes_ = 0;
};

void check_length(const std::string& what, std::int64_t given, std::int64_t most) {
  if (given <= most) return;
  throw Error(Status::unsupported, "find_ranges: the formula has " + std::to_string(given) + " " + what + ", a GPU takes " +
                                       std::to_string(most) + "; find its ranges on the CPU");
}

Preparation prepared_for_gpu(const Formula& formula) {
  Preparation made = prepared(formula);
  check_length("conditions", std::ssize(made.conditions), kMostConditions);
  check_length("different numbers of rows", std::ssize(made.numbers), kMostNumbers);
  check_length("different equalities", std::ssize(made.groups), kMostGroups);
  check_length("batch entries and heads", made.sizes.planes, kMostPlanes);
  return made;
}

DeviceFormula on_device(const Preparation& made, std::int32_t* runs, std::int32_t* found) {
  DeviceFormula formula{};
  std::ranges::copy(made.conditions, formula.conditions);
  std::ranges::copy(made.numbers, formula.numbers);
  std::ranges::copy(made.groups, formula.groups);
  formula.sizes = made.sizes;
  formula.condition_count = static_cast<std::int32_t>(made.conditions.size());
  formula.number_count = static_cast<std::int32_t>(made.numbers.size());
  formula.group_count = static_cast<std::int32_t>(made.groups.size());
  formula.runs = runs;
  formula.found = found;
  return formula;
}

unsigned blocks_of(std::int64_t items, int threads) { return static_cast<unsigned>((items + threads - 1) / threads); }

void clear(std::int32_t* numbers, std::size_t count, cudaStream_t stream) {
  if (count > 0) check(cudaMemsetAsync(numbers, 0, count * sizeof(*numbers), stream), "find_ranges: clearing counts");
}

/// Makes the trees and the tables.
void prepare(const DeviceFormula& formula, cudaStream_t stream) {
  const auto planes = static_cast<unsigned>(formula.sizes.planes);
  const auto numbers = static_cast<unsigned>(formula.number_count), groups = static_cast<unsigned>(formula.group_count);
  const unsigned blocks = blocks_of(formula.sizes.places, kThreads);
  if (numbers == 0) return;
  clear(formula.runs, groups * static_cast<std::size_t>(planes), stream);
  read_rows<<<dim3(blocks, planes, numbers + groups), kThreads, 0, stream>>>(formula);
  check(cudaGetLastError(), "find_ranges: read_rows");
  if (groups > 0 || formula.sizes.places > kThreads) {
    const unsigned clearing = groups > 0 ? std::min(blocks, kClearingBlocks) : 1;
    finish_trees<<<dim3(clearing, planes, numbers + groups), kThreads, 0, stream>>>(formula);
    check(cudaGetLastError(), "find_ranges: finish_trees");
  }
  if (groups == 0) return;
  insert_runs<<<dim3(blocks_of(formula.sizes.rows, kThreads), planes, groups), kThreads, 0, stream>>>(formula);
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
