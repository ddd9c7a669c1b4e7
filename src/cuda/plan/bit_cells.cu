// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/plan/bit_cells.h"
#include "cuda/plan/tile_map.h"
#include "cuda/plan/words.cuh"
#include "cuda/runtime/status.h"
#include "mask/cell_words.h"

namespace flashmask::cuda {
namespace {

constexpr int kStripColumns = 1024, kStripThreads = 512;

/// The grid of cells, entries of 32 cells, and granules of a mask.
struct CellGrid {
  int lists, heads, rows, columns, cell_rows, cell_columns;

  explicit CellGrid(const MaskShape& mask)
      : lists(static_cast<int>(mask.batch * mask.heads)),
        heads(static_cast<int>(mask.heads)),
        rows(static_cast<int>(mask.rows)),
        columns(static_cast<int>(mask.columns)),
        cell_rows(divide_up(rows, kCellSize)),
        cell_columns(divide_up(columns, kCellSize)) {}

  __host__ __device__ std::int64_t cell_lists() const { return static_cast<std::int64_t>(lists) * cell_rows; }
  __host__ __device__ int entries() const { return divide_up(cell_columns, 32); }
  __host__ __device__ int granules() const { return divide_up(columns, kGranule.columns); }
  __host__ __device__ int granule_words() const { return divide_up(granules(), 32); }
};

/// Visible scores of a cell, held by a warp: word [h][c] of a lane is row 32 h + lane, columns 32 c … 32 c + 31.
struct CellRows {
  std::uint32_t words[2][2];
};

/// Kinds of a cell's two granules, one bit each.
struct CellKinds {
  std::uint32_t partial = 0, full = 0;
};

/// `rows`, `columns`: how many the mask has from the cell's first row and column on.
__device__ CellKinds kinds_of(const CellRows& cell, int rows, int columns) {
  const int lane = threadIdx.x % 32;
  CellKinds kinds;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const std::uint32_t existing = low_word(columns - 32 * c);
    const bool any = __any_sync(kAllLanes, (cell.words[0][c] | cell.words[1][c]) != 0);
    const bool all = __all_sync(kAllLanes, (lane >= rows || cell.words[0][c] == existing) &&
                                               (lane + 32 >= rows || cell.words[1][c] == existing));
    kinds.full |= static_cast<std::uint32_t>(any && all) << c;
    kinds.partial |= static_cast<std::uint32_t>(any && !all) << c;
  }
  return kinds;
}

/// Stores a cell in the layout that row_words() and column_words() of common/mask_reads.cuh read. Rows past the last
/// see every column, as in a mask of intervals: the maxima of a warp then rise at the same tiles in both forms, and
/// results are bit-identical.
__device__ void store_cell(const CellRows& cell, int rows, int columns, std::uint32_t* words) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const std::uint32_t masked = ~(lane + 32 * h < rows ? cell.words[h][c] : low_word(columns - 32 * c));
      words[c * kCellSize + h * 32 + lane] = fragment_order(masked);
      words[DeviceBits::kCellWords / 2 + h * kCellSize + c * 32 + lane] = fragment_order(transpose(masked));
    }
  }
}

/// Stores the shared cells (DeviceBits::Shared), with all threads of a block.
__device__ void store_shared_cells(const CellGrid& grid, const BitStorage& out) {
  std::uint32_t* const shared = out.words + static_cast<std::int64_t>(out.stored) * DeviceBits::kCellWords;
  constexpr int kByRows = DeviceBits::kCellWords / 2;
  const int present = grid.columns - (grid.cell_columns - 1) * kCellSize;  // columns of the last cell
  for (int i = threadIdx.x; i < DeviceBits::kCellWords; i += blockDim.x) {
    const int half = i % kByRows / kCellSize, at = i % kCellSize;
    const std::uint32_t past_end = i < kByRows ? ~low_word(present - 32 * half) : at < present ? 0 : ~0U;
    shared[DeviceBits::kSkipped * DeviceBits::kCellWords + i] = ~0U;
    shared[DeviceBits::kFull * DeviceBits::kCellWords + i] = 0;
    shared[DeviceBits::kFullAtEnd * DeviceBits::kCellWords + i] = fragment_order(past_end);
  }
}

/// kStripColumns columns of one row of cells, from `column` on, in one list.
struct CellStrip {
  int list, cell_row, column;
};

/// Visible scores of a strip, one bit each; the padding avoids bank conflicts along rows and along columns.
using StripWords = std::uint32_t[kCellSize][kStripColumns / 32 + 1];

/// Returns one bit per byte: whether it is not 0.
__device__ std::uint32_t four_bits(std::uint32_t bytes) {
  const std::uint32_t high = (((bytes & 0x7F7F7F7F) + 0x7F7F7F7F) | bytes) & 0x80808080;
  return high * 0x00204081 >> 28;
}

/// Reads 16 bytes at a time where booleans are aligned.
template <bool kAligned>
struct DenseScoresReader {
  const std::uint8_t* data;
  std::int64_t batch, head, row, column;  // strides

  explicit DenseScoresReader(const DeviceDenseMask& mask)
      : data(mask.data), batch(mask.strides[0]), head(mask.strides[1]), row(mask.strides[2]), column(mask.strides[3]) {}

  __device__ void read(const CellStrip& strip, const CellGrid& grid, StripWords& visible) const {
    constexpr int kLoads = kCellSize * kStripColumns / 16 / kStripThreads;
    const int first_load = threadIdx.x / 32 * kLoads;
    const std::uint8_t* scores = data + strip.list / grid.heads * batch + strip.list % grid.heads * head;
    uint4 bytes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const Place at = place_of(strip, first_load + i);
      bytes[i] = {};
      if (at.row < grid.rows && whole(at, grid))
        bytes[i] = __ldcs(reinterpret_cast<const uint4*>(scores + at.row * row + at.column));
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) store(visible, first_load + i, sixteen_bits(bytes[i]));
#pragma unroll 1
    for (int i = 0; i < kLoads; ++i) {
      const Place at = place_of(strip, first_load + i);
      if (at.row < grid.rows && !whole(at, grid))
        store(visible, first_load + i, gather(scores + at.row * row, at.column, grid.columns));
    }
  }

 private:
  struct Place {
    int row, column;
  };
  /// A warp's load covers 512 columns of a row.
  static __device__ Place place_of(const CellStrip& strip, int load) {
    return {strip.cell_row * kCellSize + load / 2,
            strip.column + load % 2 * 512 + static_cast<int>(threadIdx.x % 32) * 16};
  }
  static __device__ bool whole(Place at, const CellGrid& grid) { return kAligned && at.column + 16 <= grid.columns; }

  static __device__ void store(StripWords& visible, int load, std::uint32_t bits) {
    reinterpret_cast<std::uint16_t*>(visible[load / 2])[load % 2 * 32 + threadIdx.x % 32] =
        static_cast<std::uint16_t>(bits);
  }

  static __device__ std::uint32_t sixteen_bits(const uint4& bytes) {
    return four_bits(bytes.x) | four_bits(bytes.y) << 4 | four_bits(bytes.z) << 8 | four_bits(bytes.w) << 12;
  }

  __device__ std::uint32_t gather(const std::uint8_t* scores, int first, int columns) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (first + i < columns) bits |= static_cast<std::uint32_t>(scores[(first + i) * column] != 0) << i;
    return bits;
  }
};

struct PackedBitsReader {
  DevicePackedMask mask;
  bool aligned;  // to words

  __device__ void read(const CellStrip& strip, const CellGrid& grid, StripWords& visible) const {
    const int lane = threadIdx.x % 32, column = strip.column + 32 * lane;
    for (int r = threadIdx.x / 32; r < kCellSize; r += kStripThreads / 32) {
      const int row = strip.cell_row * kCellSize + r;
      const bool exists = row < grid.rows && column < grid.columns;
      visible[r][lane] =
          exists ? load(static_cast<std::int64_t>(strip.list) * grid.rows + row, column, grid.columns) : 0;
    }
  }

 private:
  __device__ std::uint32_t load(std::int64_t row, int column, int columns) const {
    const int row_bytes = divide_up(columns, 8), first = column / 8;
    const std::uint8_t* at = mask.bits + row * row_bytes + first;
    if (aligned) return *reinterpret_cast<const std::uint32_t*>(at) & low_word(columns - column);
    std::uint32_t word = 0;
    for (int i = 0; i < 4 && first + i < row_bytes; ++i) word |= static_cast<std::uint32_t>(at[i]) << 8 * i;
    return word & low_word(columns - column);
  }
};

/// Packs one strip per block, which is one word of granules and one cell per warp.
template <class Reader>
__global__ void __launch_bounds__(kStripThreads, 2) pack_strips(Reader reader, CellGrid grid, BitStorage out) {
  __shared__ StripWords visible;
  __shared__ std::uint32_t kinds[2];
  const int strips = divide_up(grid.columns, kStripColumns), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cell_list = static_cast<int>(blockIdx.x) / strips, column_word = static_cast<int>(blockIdx.x) % strips;
  const CellStrip strip{cell_list / grid.cell_rows, cell_list % grid.cell_rows, column_word * kStripColumns};
  if (threadIdx.x < 2) kinds[threadIdx.x] = 0;
  reader.read(strip, grid, visible);
  __syncthreads();
  const int cell_column = strip.column / kCellSize + warp;
  if (cell_column < grid.cell_columns) {
    const CellRows cell{{{visible[lane][2 * warp], visible[lane][2 * warp + 1]},
                         {visible[lane + 32][2 * warp], visible[lane + 32][2 * warp + 1]}}};
    const std::int64_t number = static_cast<std::int64_t>(cell_list) * grid.cell_columns + cell_column;
    const int rows = grid.rows - strip.cell_row * kCellSize, columns = grid.columns - cell_column * kCellSize;
    store_cell(cell, rows, columns, out.words + number * DeviceBits::kCellWords);
    const CellKinds own = kinds_of(cell, rows, columns);
    if (lane < 2) atomicOr(&kinds[lane], (lane == 0 ? own.partial : own.full) << 2 * warp);
  }
  __syncthreads();
  if (threadIdx.x < 2)
    out.granules[(static_cast<std::int64_t>(cell_list) * 2 + threadIdx.x) * grid.granule_words() + column_word] =
        kinds[threadIdx.x];
  if (blockIdx.x == 0) store_shared_cells(grid, out);
}

struct FoundCell {
  bool full = false, partial = false;
  std::uint32_t number = 0;  // among the stored cells, if partial
};

/// Finds a cell among the runs of its row of cells, by binary search.
__device__ FoundCell find_in_runs(const CellRuns& cells, std::int64_t cell_list, int cell) {
  const std::int64_t end = cells.offsets[cell_list + 1];
  std::int64_t low = cells.offsets[cell_list];
  for (std::int64_t high = end; low < high;) {
    const std::int64_t middle = (low + high) / 2;
    if (cells.runs[middle].end <= cell) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == end || cells.runs[low].begin > cell) return {};
  if (cells.runs[low].kind == TileKind::full) return {true, false, 0};
  return {false, true, static_cast<std::uint32_t>(cells.first_cells[low] + cell - cells.runs[low].begin)};
}

/// Packs one entry per warp: each lane finds one cell, then all lanes pack the partial ones.
__global__ void pack_entries(CellRuns cells, CellGrid grid, BitStorage out, std::int64_t warps) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (blockIdx.x == 0) store_shared_cells(grid, out);
  if (warp >= warps) return;
  const std::int64_t cell_list = warp / grid.entries();
  const int lane = threadIdx.x % 32, entry = static_cast<int>(warp % grid.entries()), cell_column = 32 * entry + lane;
  const int rows = grid.rows - static_cast<int>(cell_list % grid.cell_rows) * kCellSize;
  const FoundCell found = cell_column < grid.cell_columns ? find_in_runs(cells, cell_list, cell_column) : FoundCell{};
  const std::uint32_t partial = __ballot_sync(kAllLanes, found.partial), full = __ballot_sync(kAllLanes, found.full);
  CellKinds kinds;
  if (found.full) kinds.full = cell_column * kCellSize + 32 < grid.columns ? 3 : 1;
  for (std::uint32_t left = partial; left != 0; left &= left - 1) {
    const int holder = __ffs(left) - 1;
    const std::int64_t number = __shfl_sync(kAllLanes, found.number, holder);
    const std::uint64_t* rows64 = cells.words + number * kCellSize;
    const std::uint64_t above = rows64[lane], below = rows64[lane + 32];
    const CellRows cell{{{static_cast<std::uint32_t>(above), static_cast<std::uint32_t>(above >> 32)},
                         {static_cast<std::uint32_t>(below), static_cast<std::uint32_t>(below >> 32)}}};
    const int columns = grid.columns - (32 * entry + holder) * kCellSize;
    store_cell(cell, rows, columns, out.words + number * DeviceBits::kCellWords);
    const CellKinds own = kinds_of(cell, rows, columns);
    if (lane == holder) kinds = own;
  }
  const std::uint32_t first = __shfl_sync(kAllLanes, found.number, partial == 0 ? 0 : __ffs(partial) - 1);
  if (lane == 0) out.index[warp] = {partial, full, first, 0};
  for (int half = 0; half < 2; ++half) {
    const int shift = lane % 16 * 2;
    const bool own = lane / 16 == half;
    const std::uint32_t partial_word = __reduce_or_sync(kAllLanes, own ? kinds.partial << shift : 0);
    const std::uint32_t full_word = __reduce_or_sync(kAllLanes, own ? kinds.full << shift : 0);
    const int word = 2 * entry + half;
    if (lane >= 2 || word >= grid.granule_words()) continue;
    out.granules[(cell_list * 2 + lane) * grid.granule_words() + word] = lane == 0 ? partial_word : full_word;
  }
}

template <class Reader>
void pack(const Reader& reader, const MaskShape& mask, const BitStorage& out, cudaStream_t stream) {
  const CellGrid grid(mask);
  const std::int64_t blocks = grid.cell_lists() * divide_up(grid.columns, kStripColumns);
  if (blocks == 0) return;
  pack_strips<<<static_cast<unsigned>(blocks), kStripThreads, 0, stream>>>(reader, grid, out);
  check(cudaGetLastError(), "plan: pack_strips");
}

constexpr int kWarps = 4;

/// Returns how many blocks of kWarps warps are needed.
unsigned blocks_of(std::int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

bool is_aligned(const DeviceDenseMask& mask) {
  const std::int64_t sizes[3] = {mask.shape.batch, mask.shape.heads, mask.shape.rows};
  bool aligned = reinterpret_cast<std::uintptr_t>(mask.data) % 16 == 0 && mask.strides[3] == 1;
  for (std::size_t axis = 0; axis < 3; ++axis) aligned &= sizes[axis] == 1 || mask.strides[axis] % 16 == 0;
  return aligned;
}

}  // namespace

std::size_t cell_count(const MaskShape& mask) {
  const CellGrid grid(mask);
  return static_cast<std::size_t>(grid.cell_lists()) * static_cast<std::size_t>(grid.cell_columns);
}

std::size_t cell_entries(const MaskShape& mask) {
  const CellGrid grid(mask);
  return static_cast<std::size_t>(grid.cell_lists()) * static_cast<std::size_t>(grid.entries());
}

std::size_t granule_words(const MaskShape& mask) { return TileGrid(mask, kGranule).by_row_words(); }

void pack_cells(const DeviceDenseMask& mask, const BitStorage& out, cudaStream_t stream) {
  if (is_aligned(mask)) {
    pack(DenseScoresReader<true>{mask}, mask.shape, out, stream);
  } else {
    pack(DenseScoresReader<false>{mask}, mask.shape, out, stream);
  }
}

void pack_cells(const DevicePackedMask& mask, const BitStorage& out, cudaStream_t stream) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(mask.bits) % 4 == 0 && (mask.shape.columns + 7) / 8 % 4 == 0;
  pack(PackedBitsReader{mask, aligned}, mask.shape, out, stream);
}

void pack_cells(const CellRuns& cells, const MaskShape& mask, const BitStorage& out, cudaStream_t stream) {
  const auto warps = static_cast<std::int64_t>(cell_entries(mask));
  if (warps == 0) return;
  pack_entries<<<blocks_of(warps), 32 * kWarps, 0, stream>>>(cells, CellGrid(mask), out, warps);
  check(cudaGetLastError(), "plan: pack_entries");
}

}  // namespace flashmask::cuda
