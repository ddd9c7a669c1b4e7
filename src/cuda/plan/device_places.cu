// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "cuda/plan/device_places.h"
#include "cuda/plan/row_indices.cuh"
#include "cuda/runtime/status.h"

namespace flashmask::cuda {
namespace {

/// A block has this many neighbouring cuts, a thread each; cut c lies before column c, and the last behind all.
constexpr int kChunk = 1024;
constexpr int kThreads = 256;  // of kernels in which threads are on their own

using Scan = cub::BlockScan<int, kChunk>;
using Reduce = cub::BlockReduce<int, kChunk>;

struct Max {
  __device__ int operator()(int a, int b) const { return max(a, b); }
};
struct Min {
  __device__ int operator()(int a, int b) const { return min(a, b); }
};
struct Sum {
  __device__ int operator()(int a, int b) const { return a + b; }
};

/// What one chunk adds to scans over all of them.
struct ChunkTotals {
  int rows_end;    ///< the largest end of the rows that see a column
  int rows_begin;  ///< the smallest begin
  int last_free;   ///< the last free cut; −1: none
  int islands;     ///< that begin
};

/// Which kinds of parts end at one free cut: columns and rows since the cut before, and then rows that see nothing.
struct PartsAt {
  int before;  ///< the free cut before this one; −1: there is none
  int kinds;   ///< of Kind
};
enum Kind : int { kFree = 1, kSingle = 2, kRowsAlone = 4 };  // kSingle: as Island::single, of the first of the two

/// Where an island begins: a part with sums, or neighbouring parts without any. Units are counted anew there.
struct Corner {
  int row, column;
};

/// The sizes, and the memory that the kernels hand on; all per batch entry.
struct Work {
  DeviceRowIndices mask;
  PlacesMemory out;
  int batch, heads, rows, columns;  // of tokens
  int row_unit, column_unit;        // places of a unit
  int row_units, column_units;      // room
  int most;                         // islands
  int chunks;
  ChunkTotals* totals;  // [chunks]
  int2* seen;           // [columns]: begin and end of the rows that see the column in any head
  int2* sides;          // [cuts]: VisibleRows::Sides
  PartsAt* parts;       // [cuts]
  Corner* islands;      // [most + 1]
  Corner* firsts;       // [most + 1]: units before each island
  int* counts;          // [1]: islands
  int* numbers;         // [rows + 1]: the place of each row; behind the last, all places

  __host__ __device__ int cuts() const { return columns + 1; }
  __device__ ChunkTotals& total(int chunk) const { return totals[blockIdx.y * chunks + chunk]; }
  __device__ int cut() const { return static_cast<int>(blockIdx.x) * kChunk + static_cast<int>(threadIdx.x); }
  __device__ const int2& sides_at(int cut) const { return sides[static_cast<std::int64_t>(blockIdx.y) * cuts() + cut]; }
  __device__ PartsAt& parts_at(int cut) const { return parts[static_cast<std::int64_t>(blockIdx.y) * cuts() + cut]; }
  __device__ Corner* islands_of(int entry) const { return islands + static_cast<std::int64_t>(entry) * (most + 1); }
  __device__ Corner* firsts_of(int entry) const { return firsts + static_cast<std::int64_t>(entry) * (most + 1); }
  /// Returns the first row behind the parts of a free cut; −1: of none.
  __device__ int row_behind(int cut) const { return cut < 0 ? 0 : sides_at(cut).y; }
};

/// Returns, in every thread, the reduction of one of the totals over the chunks [from, until).
template <class Op, class Value>
__device__ int over_chunks(int from, int until, int nothing, const Op& op, const Value& value) {
  __shared__ typename Reduce::TempStorage storage;
  __shared__ int result;
  int own = nothing;
  for (int chunk = from + static_cast<int>(threadIdx.x); chunk < until; chunk += kChunk) own = op(own, value(chunk));
  own = Reduce(storage).Reduce(own, op);
  if (threadIdx.x == 0) result = own;
  __syncthreads();
  return result;
}

__global__ void __launch_bounds__(kChunk) find_visible_rows(Work work) {
  __shared__ typename Reduce::TempStorage storage;
  const int column = work.cut();
  int2 seen{work.rows, 0};
  if (column < work.columns) {
    for (int head = 0; head < work.heads; ++head) {
      const std::int64_t list = static_cast<std::int64_t>(blockIdx.y) * work.heads + head;
      const MaskedRows masked = masked_rows(work.mask, list * work.columns + column);
      const int2 last = masked.second.x < masked.second.y ? masked.second : masked.first;
      const int begin = masked.first.x == 0 ? masked.first.y : 0, end = last.y == work.rows ? last.x : work.rows;
      if (begin < end) seen = {min(seen.x, begin), max(seen.y, end)};
    }
    work.seen[static_cast<std::int64_t>(blockIdx.y) * work.columns + column] = seen;
  }
  const int end = Reduce(storage).Reduce(seen.y, Max());
  __syncthreads();
  const int begin = Reduce(storage).Reduce(seen.x, Min());
  if (threadIdx.x != 0) return;
  work.total(static_cast<int>(blockIdx.x)) = {end, begin, -1, 0};
  if (blockIdx.x == 0 && blockIdx.y == 0) *work.out.used_rows = 0;
}

__global__ void __launch_bounds__(kChunk) find_free_cuts(Work work) {
  __shared__ typename Scan::TempStorage storage;
  __shared__ typename Reduce::TempStorage last;
  __shared__ int begins[kChunk];
  const int chunk = static_cast<int>(blockIdx.x), cut = work.cut(), mirror = kChunk - 1 - static_cast<int>(threadIdx.x);
  const int above_all = over_chunks(0, chunk, 0, Max(), [&](int i) { return work.total(i).rows_end; });
  const int below_all =
      over_chunks(chunk + 1, work.chunks, work.rows, Min(), [&](int i) { return work.total(i).rows_begin; });
  const int2 seen =
      cut < work.columns ? work.seen[static_cast<std::int64_t>(blockIdx.y) * work.columns + cut] : int2{work.rows, 0};
  int above = 0, below = 0;
  Scan(storage).ExclusiveScan(seen.y, above, above_all, Max());
  begins[threadIdx.x] = seen.x;
  __syncthreads();
  Scan(storage).InclusiveScan(begins[mirror], below, Min());
  __syncthreads();
  begins[mirror] = below;
  __syncthreads();
  below = min(begins[threadIdx.x], below_all);
  const bool free = cut < work.cuts() && above <= below;
  if (cut < work.cuts()) {
    work.sides[static_cast<std::int64_t>(blockIdx.y) * work.cuts() + cut] = {above, below};
    work.parts_at(cut) = {-1, free ? kFree : 0};
  }
  const int last_free = Reduce(last).Reduce(free ? cut : -1, Max());
  if (threadIdx.x == 0) work.total(chunk).last_free = last_free;
}

__global__ void __launch_bounds__(kChunk) find_parts(Work work) {
  __shared__ typename Scan::TempStorage storage;
  const int chunk = static_cast<int>(blockIdx.x), cut = work.cut();
  const int before_all = over_chunks(0, chunk, -1, Max(), [&](int i) { return work.total(i).last_free; });
  const bool free = cut < work.cuts() && work.parts_at(cut).kinds != 0;
  int before = -1;
  Scan(storage).ExclusiveScan(free ? cut : -1, before, before_all, Max());
  if (!free) return;
  const int2 sides = work.sides_at(cut);
  const int row = work.row_behind(before), row_end = max(sides.x, row);
  const int height = row_end - row, width = cut - max(before, 0);
  const bool single = height == 0 || width == 0 || (height == 1 && width == 1);
  work.parts_at(cut) = {before, kFree | (single ? kSingle : 0) | (sides.y > row_end ? kRowsAlone : 0)};
}

/// The islands that begin with the parts of a free cut.
struct IslandsAt {
  bool first = false, rows_alone = false;

  __device__ IslandsAt(const Work& work, int cut) {
    if (cut >= work.cuts()) return;
    const PartsAt own = work.parts_at(cut);
    if (own.kinds == 0) return;
    const bool single = own.kinds & kSingle, has_rows_alone = own.kinds & kRowsAlone;
    if (cut == 0) {  // no columns lie before it
      rows_alone = has_rows_alone;
      return;
    }
    const int before = work.parts_at(own.before).kinds;
    const bool behind_single = before & kRowsAlone || (own.before > 0 && before & kSingle);
    first = !single || !behind_single;
    rows_alone = has_rows_alone && !single;
  }
  __device__ int count() const { return static_cast<int>(first) + static_cast<int>(rows_alone); }
};

__global__ void __launch_bounds__(kChunk) count_islands(Work work) {
  __shared__ typename Reduce::TempStorage storage;
  const int count = Reduce(storage).Reduce(IslandsAt(work, work.cut()).count(), Sum());
  if (threadIdx.x == 0) work.total(static_cast<int>(blockIdx.x)).islands = count;
}

__global__ void __launch_bounds__(kChunk) list_islands(Work work) {
  __shared__ typename Scan::TempStorage storage;
  const int chunk = static_cast<int>(blockIdx.x), cut = work.cut(), entry = static_cast<int>(blockIdx.y);
  const int earlier = over_chunks(0, chunk, 0, Sum(), [&](int i) { return work.total(i).islands; });
  const IslandsAt own(work, cut);
  int next = 0;
  Scan(storage).ExclusiveScan(own.count(), next, earlier, Sum());
  Corner* const to = work.islands_of(entry);
  const auto add = [&](bool begins, int row, int column) {
    if (begins && next < work.most) to[next] = {row, column};
    next += begins;
  };
  if (own.count() != 0) {
    const int before = work.parts_at(cut).before, row = work.row_behind(before);
    add(own.first, row, max(before, 0));
    add(own.rows_alone, max(work.sides_at(cut).x, row), cut);
  }
  if (cut == work.cuts() - 1) work.counts[entry] = next;
}

/// Returns how many units of `size` tokens [begin, end) has.
__device__ int units_between(int begin, int end, int size) { return (end - begin + size - 1) / size; }

/// A block per batch entry counts the units before each island.
__global__ void __launch_bounds__(kChunk) count_units(Work work) {
  __shared__ typename Scan::TempStorage storage;
  const int entry = static_cast<int>(blockIdx.x), found = work.counts[entry], count = min(found, work.most);
  Corner *const islands = work.islands_of(entry), *const firsts = work.firsts_of(entry);
  if (found > work.most && threadIdx.x == 0) {
    printf(
        "flashmask: an invariant plan has room for %d documents, and its mask on the GPU has %d, stretches of padding "
        "counted; raise most_documents\n",
        work.most, found);
    __trap();
  }
  if (threadIdx.x == 0) islands[count] = {work.rows, work.columns};
  __syncthreads();
  Corner before{0, 0};
  for (int first = 0; first < count; first += kChunk) {
    const int i = first + static_cast<int>(threadIdx.x);
    Corner units{0, 0}, sums{}, all{};
    if (i < count)
      units = {units_between(islands[i].row, islands[i + 1].row, work.row_unit),
               units_between(islands[i].column, islands[i + 1].column, work.column_unit)};
    Scan(storage).ExclusiveSum(units.row, sums.row, all.row);
    __syncthreads();
    Scan(storage).ExclusiveSum(units.column, sums.column, all.column);
    __syncthreads();
    if (i < count) firsts[i] = {before.row + sums.row, before.column + sums.column};
    before = {before.row + all.row, before.column + all.column};
  }
  if (threadIdx.x != 0) return;
  firsts[count] = before;
  atomicMax(work.out.used_rows, before.row);
}

/// Returns the last of `count` ascending corners whose side is at most `value`.
__device__ int last_until(const Corner* corners, int count, int Corner::*side, int value) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (corners[middle].*side <= value ? low : high) = middle;
  }
  return low;
}

/// Returns unit `i` of one axis, past whose last unit are empty ones.
__device__ Unit unit_at(const Corner* islands, const Corner* firsts, int count, int Corner::*side, int i, int size) {
  const int end = islands[count].*side;
  if (i >= firsts[count].*side) return {end, end};
  const int island = last_until(firsts, count, side, i);
  const int begin = islands[island].*side + (i - firsts[island].*side) * size;
  return {begin, min(begin + size, islands[island + 1].*side)};
}

/// A thread per row, and per unit of either axis.
__global__ void __launch_bounds__(kThreads) write_units(Work work) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int entry = static_cast<int>(blockIdx.y), count = min(work.counts[entry], work.most);
  const Corner *const islands = work.islands_of(entry), *const firsts = work.firsts_of(entry);
  if (i < work.row_units)
    work.out.row_units[static_cast<std::int64_t>(entry) * work.row_units + i] =
        unit_at(islands, firsts, count, &Corner::row, i, work.row_unit);
  if (i < work.column_units)
    work.out.column_units[static_cast<std::int64_t>(entry) * work.column_units + i] =
        unit_at(islands, firsts, count, &Corner::column, i, work.column_unit);
  if (i > work.rows) return;
  int place = work.row_units * work.row_unit;
  if (i < work.rows) {
    const int island = last_until(islands, count, &Corner::row, i);
    place = firsts[island].row * work.row_unit + i - islands[island].row;
  }
  work.numbers[static_cast<std::int64_t>(entry) * (work.rows + 1) + i] = place;
}

/// Masks the rows from `begin` on, which are empty units, where the column has a range left for them; it is exact
/// without, as they hold no tokens.
__device__ void mask_rows_from(int4& masked, int begin, int end) {
  const bool has_first = masked.x < masked.y, has_second = masked.z < masked.w;
  int& last = has_second ? masked.w : masked.y;
  if (begin == end || (has_first && last == end)) return;
  if (has_first && last == begin) {
    last = end;
  } else if (!has_first) {
    masked.x = begin, masked.y = end;
  } else if (!has_second) {
    masked.z = begin, masked.w = end;
  }
}

/// A thread per place of a column.
__global__ void __launch_bounds__(kThreads) move_columns(Work work) {
  const int place = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int entry = static_cast<int>(blockIdx.y), places = work.column_units * work.column_unit;
  if (place >= places) return;
  const int* const numbers = work.numbers + static_cast<std::int64_t>(entry) * (work.rows + 1);
  const Unit unit =
      work.out.column_units[static_cast<std::int64_t>(entry) * work.column_units + place / work.column_unit];
  const int column = unit.begin + place % work.column_unit;
  const int filled = work.firsts_of(entry)[min(work.counts[entry], work.most)].row * work.row_unit;
  for (int head = 0; head < work.heads; ++head) {
    const std::int64_t list = static_cast<std::int64_t>(entry) * work.heads + head;
    int4 moved{0, work.row_units * work.row_unit, 0, 0};  // padding is masked throughout
    if (column < unit.end) {
      const MaskedRows masked = masked_rows(work.mask, list * work.columns + column);
      moved = {numbers[masked.first.x], numbers[masked.first.y], numbers[masked.second.x], numbers[masked.second.y]};
      mask_rows_from(moved, filled, work.row_units * work.row_unit);
    }
    const std::int64_t at = list * places + place;
    work.out.intervals[0][at] = moved.x;
    work.out.intervals[1][at] = moved.y;
    work.out.intervals[2][at] = moved.z;
    work.out.intervals[3][at] = moved.w;
  }
}

/// A thread per place of one axis: the token that lies there.
__global__ void __launch_bounds__(kThreads) list_tokens(const Unit* units, int count, int size, std::int64_t* order) {
  const int place = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (place >= count * size) return;
  const Unit unit = units[static_cast<std::int64_t>(blockIdx.y) * count + place / size];
  const int token = unit.begin + place % size;
  order[static_cast<std::int64_t>(blockIdx.y) * count * size + place] = token < unit.end ? token : -1;
}

/// Hands out the scratch; without memory it only counts.
class Scratch {
 public:
  explicit Scratch(std::int32_t* memory) : memory_(memory) {}

  template <class T>
  void take(T*& piece, std::int64_t count) {
    constexpr std::int64_t kOfOne = sizeof(T) / sizeof(std::int32_t), kAligned = 4;
    piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + numbers_);
    numbers_ += (count * kOfOne + kAligned - 1) / kAligned * kAligned;
  }
  std::int64_t numbers() const { return numbers_; }

 private:
  std::int32_t* memory_;
  std::int64_t numbers_ = 0;
};

Work work_of(const PlacedRowIndices& places, const PlacesMemory& out, std::int64_t& scratch_numbers) {
  const MaskShape& tokens = places.rows.shape;
  Work work{};
  work.mask = places.rows;
  work.out = out;
  work.batch = static_cast<int>(tokens.batch);
  work.heads = static_cast<int>(tokens.heads);
  work.rows = static_cast<int>(tokens.rows);
  work.columns = static_cast<int>(tokens.columns);
  work.row_unit = places.unit.rows;
  work.column_unit = places.unit.columns;
  work.row_units = static_cast<int>(places.shape.rows / places.unit.rows);
  work.column_units = static_cast<int>(places.shape.columns / places.unit.columns);
  work.most = static_cast<int>(places.most_islands);
  work.chunks = work.columns / kChunk + 1;
  Scratch scratch(out.scratch);
  const std::int64_t entries = tokens.batch, cuts = entries * work.cuts(), islands = entries * (work.most + 1);
  scratch.take(work.totals, entries * work.chunks);
  scratch.take(work.seen, entries * work.columns);
  scratch.take(work.sides, cuts);
  scratch.take(work.parts, cuts);
  scratch.take(work.islands, islands);
  scratch.take(work.firsts, islands);
  scratch.take(work.counts, entries);
  scratch.take(work.numbers, entries * (work.rows + 1));
  scratch_numbers = scratch.numbers();
  return work;
}

unsigned blocks_of(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

std::size_t places_scratch(const PlacedRowIndices& places) {
  std::int64_t numbers = 0;
  work_of(places, {}, numbers);
  return static_cast<std::size_t>(numbers);
}

void place_row_indices(const PlacedRowIndices& places, const PlacesMemory& memory, cudaStream_t stream) {
  std::int64_t numbers = 0;
  const Work work = work_of(places, memory, numbers);
  const auto entries = static_cast<unsigned>(work.batch);
  if (entries == 0) return;
  const dim3 chunks(static_cast<unsigned>(work.chunks), entries);
  find_visible_rows<<<chunks, kChunk, 0, stream>>>(work);
  find_free_cuts<<<chunks, kChunk, 0, stream>>>(work);
  find_parts<<<chunks, kChunk, 0, stream>>>(work);
  count_islands<<<chunks, kChunk, 0, stream>>>(work);
  list_islands<<<chunks, kChunk, 0, stream>>>(work);
  count_units<<<entries, kChunk, 0, stream>>>(work);
  const std::int64_t most = std::max({work.row_units, work.column_units, work.rows + 1});
  write_units<<<dim3(blocks_of(most), entries), kThreads, 0, stream>>>(work);
  if (places.shape.columns != 0)
    move_columns<<<dim3(blocks_of(places.shape.columns), entries), kThreads, 0, stream>>>(work);
  const auto list = [&](std::int64_t* order, const Unit* units, int count, int size) {
    if (order == nullptr || count == 0) return;
    list_tokens<<<dim3(blocks_of(std::int64_t{count} * size), entries), kThreads, 0, stream>>>(units, count, size,
                                                                                               order);
  };
  list(memory.row_order, memory.row_units, work.row_units, work.row_unit);
  list(memory.column_order, memory.column_units, work.column_units, work.column_unit);
  check(cudaGetLastError(), "plan: place_row_indices");
}

}  // namespace flashmask::cuda
