#include "cuda/status.h"
#include "cuda/tile_map.h"

namespace flashmask::cuda {
namespace {

constexpr unsigned kAllLanes = ~0U;

__host__ __device__ constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

struct Classification {
  const std::int32_t* intervals[4];
  KeptBlocks blocks;
  int heads, rows, columns, tile_rows, tile_columns;

  /// Whether the block of a tile is kept.
  __device__ bool keeps(int list, int row_tile, int column_tile) const {
    if (blocks.keep == nullptr) return true;
    const int batch = blocks.batch == 1 ? 0 : list / heads, head = blocks.heads == 1 ? 0 : list % heads;
    const std::int64_t row =
        (static_cast<std::int64_t>(batch) * blocks.heads + head) * blocks.rows + row_tile * tile_rows / blocks.block;
    const std::int64_t at = row * blocks.columns + column_tile * tile_columns / blocks.block;
    return blocks.wide ? static_cast<const std::int32_t*>(blocks.keep)[at] != 0
                       : static_cast<const std::uint8_t*>(blocks.keep)[at] != 0;
  }
};

/// Sums of a value over this lane and those before it.
__device__ int sum_before(int value) {
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 >= step) value += other;
  }
  return value;
}

/// Marks where a range of masked rows begins and ends to cover and to touch row tiles.
__device__ void count_range(const Classification& mask, int begin, int end, int* covered, int* touched) {
  if (begin >= end) return;
  atomicAdd(touched + begin / mask.tile_rows, 1);
  atomicSub(touched + divide_up(end, mask.tile_rows), 1);
  const int first = divide_up(begin, mask.tile_rows);
  const int last = end == mask.rows ? divide_up(mask.rows, mask.tile_rows) : end / mask.tile_rows;
  if (first >= last) return;
  atomicAdd(covered + first, 1);
  atomicSub(covered + last, 1);
}

/// A block takes one column of tiles: its threads count ranges, a thread a column of the mask; then its first warp sums
/// the counts down the row tiles. All columns cover a tile: skip; none touches it: full.
__global__ void classify_columns(Classification mask, std::uint32_t* by_column, std::uint32_t* visited) {
  extern __shared__ int changes[];
  if (visited != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *visited = 0;
  const int row_tiles = divide_up(mask.rows, mask.tile_rows), words = divide_up(row_tiles, 32);
  int *covered = changes, *touched = changes + words * 32 + 1;
  for (int i = threadIdx.x; i < 2 * (words * 32 + 1); i += blockDim.x) changes[i] = 0;
  __syncthreads();
  const int first_column = blockIdx.x * mask.tile_columns;
  const int columns = min(mask.tile_columns, mask.columns - first_column);
  if (threadIdx.x < columns) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * mask.columns + first_column + threadIdx.x;
    count_range(mask, mask.intervals[0][at], mask.intervals[1][at], covered, touched);
    count_range(mask, mask.intervals[2][at], mask.intervals[3][at], covered, touched);
  }
  __syncthreads();
  const int lane = threadIdx.x;
  if (lane >= 32) return;
  std::uint32_t* out = by_column + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * 2 * words;
  int covering = 0, touching = 0;
  for (int word = 0; word < words; ++word) {
    const int row = word * 32 + lane;
    covering += sum_before(covered[row]);
    touching += sum_before(touched[row]);
    const bool skip = row >= row_tiles || covering == columns || !mask.keeps(blockIdx.y, row, blockIdx.x);
    const bool full = !skip && touching == 0;
    const std::uint32_t partial_bits = __ballot_sync(kAllLanes, !full && !skip);
    const std::uint32_t full_bits = __ballot_sync(kAllLanes, full);
    if (lane == 0) {
      out[word] = partial_bits;
      out[words + word] = full_bits;
    }
    covering = __shfl_sync(kAllLanes, covering, 31);
    touching = __shfl_sync(kAllLanes, touching, 31);
  }
}

/// A warp turns 32 × 32 tiles, partial ones and full ones, and counts them.
__global__ void turn(TileMaps maps, int row_tiles, int column_tiles) {
  const int row_words = divide_up(row_tiles, 32), column_words = divide_up(column_tiles, 32);
  const int lane = threadIdx.x % 32, column_word = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (column_word >= column_words) return;
  const int column = column_word * 32 + lane, row = blockIdx.y * 32 + lane;
  const auto list = static_cast<std::int64_t>(blockIdx.z);
  int count = 0;
  for (int kind = 0; kind < 2; ++kind) {
    const std::uint32_t own = column < column_tiles
                                  ? maps.by_column[((list * column_tiles + column) * 2 + kind) * row_words + blockIdx.y]
                                  : 0;
    std::uint32_t turned = 0;
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t word = __ballot_sync(kAllLanes, own >> i & 1);
      if (lane == i) turned = word;
    }
    count += __popc(own);
    if (row < row_tiles) maps.by_row[((list * row_tiles + row) * 2 + kind) * column_words + column_word] = turned;
  }
  count = __reduce_add_sync(kAllLanes, count);
  if (maps.visited != nullptr && lane == 0 && count > 0) atomicAdd(maps.visited, count);
}

}  // namespace

TileCounts::TileCounts(const MaskShape& mask, TileShape tile)
    : lists(static_cast<int>(mask.batch * mask.heads)),
      rows(divide_up(static_cast<int>(mask.rows), tile.rows)),
      columns(divide_up(static_cast<int>(mask.columns), tile.columns)) {}

void make_tile_map(const std::int32_t* const (&intervals)[4], const KeptBlocks& blocks, const MaskShape& mask,
                   TileShape tile, const TileMaps& maps, cudaStream_t stream) {
  const TileCounts tiles(mask, tile);
  if (tiles.by_row_words() == 0) return;
  const Classification classification{{intervals[0], intervals[1], intervals[2], intervals[3]},
                                      blocks,
                                      static_cast<int>(mask.heads),
                                      static_cast<int>(mask.rows),
                                      static_cast<int>(mask.columns),
                                      tile.rows,
                                      tile.columns};
  const int shared_bytes = 2 * (tiles.row_words() * 32 + 1) * static_cast<int>(sizeof(int));
  check(cudaFuncSetAttribute(classify_columns, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "plan: shared memory of classify_columns");
  classify_columns<<<dim3(tiles.columns, tiles.lists), tile.columns, shared_bytes, stream>>>(
      classification, maps.by_column, maps.visited);
  check(cudaGetLastError(), "plan: classify_columns");
  if (maps.by_row == nullptr) return;
  constexpr int kWarps = 4;
  turn<<<dim3(divide_up(tiles.column_words(), kWarps), tiles.row_words(), tiles.lists), 32 * kWarps, 0, stream>>>(
      maps, tiles.rows, tiles.columns);
  check(cudaGetLastError(), "plan: turn");
}

}  // namespace flashmask::cuda
