#include <algorithm>
#include <string>

#include "cuda/plan/tile_map.h"
#include "cuda/plan/tile_ranges.cuh"
#include "cuda/plan/words.cuh"
#include "cuda/runtime/status.h"

namespace flashmask::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
/// Columns of tiles that a block takes: a word of the map by rows.
constexpr int kTiles = 32;
/// Row tiles that a block takes, in words of its columns: enough that columns are seldom read again, and less where
/// blocks are too few to fill the device.
constexpr int kMostWords = 64, kEnoughBlocks = 64;
constexpr int kMostTileRows = 256;

struct IntervalsView {
  const std::int32_t* values[4];
  BlockView blocks;
  int heads, rows, columns;
};

/// A map that is made, and the share of it that a block takes.
struct Job {
  TileMaps maps;
  int tile_rows, tile_columns;
  int row_tiles, column_tiles, row_words, column_words;
  int words, slices;  // of a block, and of a column of tiles
  int first_block;    // of those of a list

  int blocks() const { return column_words * slices; }
};

/// The blocks of a list follow each other, whatever they make, so that its columns are still in the cache.
struct Jobs {
  Job jobs[kMostMaps];
  int count, blocks_of_list;

  __device__ const Job& of(int block) const {
    int job = count - 1;
    while (block < jobs[job].first_block) --job;
    return jobs[job];
  }
};

/// What a block makes: kTiles columns of tiles, and words of their rows.
struct Share {
  const Job& job;
  int list, column_word, first_word, words;

  __device__ explicit Share(const Jobs& jobs) : job(jobs.of(blockIdx.x % jobs.blocks_of_list)) {
    const int block = blockIdx.x % jobs.blocks_of_list - job.first_block;
    list = blockIdx.x / jobs.blocks_of_list;
    column_word = block % job.column_words;
    first_word = block / job.column_words * job.words;
    words = min(job.words, job.row_words - first_word);
  }
  __device__ TileSlice slice(int rows) const {
    const int first_tile = first_word * 32;
    return TileSlice(first_tile, min(words * 32, job.row_tiles - first_tile), job.tile_rows, rows);
  }
};

/// In shared memory: for each column of tiles the words of tiles that a range touches in part, those of tiles that a
/// column leaves uncovered in part, and where the number of ranges that fill whole words changes, for both kinds in one
/// integer. The words become those of partial and of full tiles. An odd pitch keeps the banks of 32 columns apart.
struct Counts {
  static constexpr int kUncovered = 1 << 16;

  std::uint32_t* bits;
  int* changes;
  int words;

  __host__ __device__ static constexpr int integers(int words) { return kTiles * (2 * words + 1 + words); }
  __device__ Counts(int* memory, int of_block)
      : bits(reinterpret_cast<std::uint32_t*>(memory)),
        changes(memory + kTiles * (2 * of_block + 1)),
        words(of_block) {}
  __device__ std::uint32_t* bits_of(int tile, int kind) const { return bits + tile * (2 * words + 1) + kind * words; }
  __device__ int* changes_of(int tile) const { return changes + tile * words; }
};

struct SharedWords {
  std::uint32_t* bits;
  int* changes;
  int count, unit;

  __device__ void set(int word, std::uint32_t to) const { atomicOr(bits + word, to); }
  __device__ void change(int word, int by) const { atomicAdd(changes + word, by * unit); }
};

/// Of neighbouring columns that say the same, the first marks: all lanes at one word would wait for each other.
__device__ void mark_once(TileRange range, const SharedWords& words) {
  const int own = range.begin < range.end ? range.begin << 16 | range.end : 0;
  const int left = __shfl_up_sync(kAllLanes, own, 1);
  if (own != 0 && (threadIdx.x % 32 == 0 || own != left)) mark(range, words.count, words);
}

/// A thread a column of the mask, a warp within one column of tiles.
__device__ void mark_columns(const IntervalsView& mask, const Share& share, const Counts& counts) {
  const int tile_columns = share.job.tile_columns, lane = threadIdx.x % 32;
  const int first_column = share.column_word * kTiles * tile_columns;
  const int columns = min(kTiles * tile_columns, mask.columns - first_column);
  const std::int64_t begin = static_cast<std::int64_t>(share.list) * mask.columns + first_column;
  const TileSlice slice = share.slice(mask.rows);
  for (int i = threadIdx.x; i - lane < columns; i += kThreads) {
    ColumnTiles says{};
    if (i < columns)
      says = slice.of(mask.values[0][begin + i], mask.values[1][begin + i], mask.values[2][begin + i],
                      mask.values[3][begin + i]);
    const int tile = i / tile_columns;
    const SharedWords touched{counts.bits_of(tile, 0), counts.changes_of(tile), share.words, 1};
    const SharedWords uncovered{counts.bits_of(tile, 1), counts.changes_of(tile), share.words, Counts::kUncovered};
    for (const TileRange& range : says.touched) mark_once(range, touched);
    for (const TileRange& range : says.uncovered) mark_once(range, uncovered);
  }
}

/// Sums of a value over this lane and those before it.
__device__ int sum_before(int value) {
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, value, step);
    if (threadIdx.x % 32 >= step) value += other;
  }
  return value;
}

/// Those of 32 row tiles whose block of scores is kept.
__device__ std::uint32_t kept_tiles(const IntervalsView& mask, const Share& share, int column_tile, int word,
                                    std::uint32_t tiles) {
  const BlockView& blocks = mask.blocks;
  if (blocks.keep == nullptr) return tiles;
  const int batch = blocks.batch == 1 ? 0 : share.list / mask.heads;
  const int head = blocks.heads == 1 ? 0 : share.list % mask.heads;
  const int column = column_tile * share.job.tile_columns / blocks.block;
  for (std::uint32_t left = tiles; left != 0; left &= left - 1) {
    const int tile = __ffs(left) - 1, row = (word * 32 + tile) * share.job.tile_rows / blocks.block;
    const std::int64_t at =
        ((static_cast<std::int64_t>(batch) * blocks.heads + head) * blocks.rows + row) * blocks.columns + column;
    const bool keep = blocks.wide ? static_cast<const std::int32_t*>(blocks.keep)[at] != 0
                                  : static_cast<const std::uint8_t*>(blocks.keep)[at] != 0;
    if (!keep) tiles &= ~(1U << tile);
  }
  return tiles;
}

/// A warp a column of tiles, a lane a word: no column leaves a tile uncovered: skip; no range touches it: full.
__device__ void settle(const IntervalsView& mask, const Share& share, const Counts& counts) {
  const Job& job = share.job;
  const int lane = threadIdx.x % 32;
  for (int tile = threadIdx.x / 32; tile < kTiles; tile += kWarps) {
    const int column = share.column_word * kTiles + tile;
    if (column >= job.column_tiles) return;
    std::uint32_t *const partial = counts.bits_of(tile, 0), *const full = counts.bits_of(tile, 1);
    std::uint32_t* out = nullptr;
    if (job.maps.by_column != nullptr)
      out = job.maps.by_column +
            (static_cast<std::int64_t>(share.list) * job.column_tiles + column) * 2 * job.row_words + share.first_word;
    int before = 0;
    for (int first = 0; first < share.words; first += 32) {
      const int word = first + lane;
      const bool own = word < share.words;
      const int count = before + sum_before(own ? counts.changes_of(tile)[word] : 0);
      before = __shfl_sync(kAllLanes, count, 31);
      if (!own) continue;
      const std::uint32_t touched = count % Counts::kUncovered != 0 ? ~0U : partial[word];
      const std::uint32_t visible = count / Counts::kUncovered != 0 ? ~0U : full[word];
      const std::uint32_t active = kept_tiles(mask, share, column, share.first_word + word, visible);
      partial[word] = active & touched;
      full[word] = active & ~touched;
      if (out == nullptr) continue;
      out[word] = partial[word];
      out[job.row_words + word] = full[word];
    }
  }
}

/// A warp turns 32 × 32 tiles, partial ones and full ones, and counts them.
__device__ void transpose_tiles(const Share& share, const Counts& counts) {
  const Job& job = share.job;
  const int lane = threadIdx.x % 32;
  int visited = 0;
  for (int word = threadIdx.x / 32; word < share.words; word += kWarps) {
    const std::int64_t row = (share.first_word + word) * 32 + lane;
    for (int kind = 0; kind < 2; ++kind) {
      const std::uint32_t own = counts.bits_of(lane, kind)[word], by_row = transpose(own);
      visited += __popc(own);
      if (row < job.row_tiles)
        job.maps.by_row[((std::int64_t{share.list} * job.row_tiles + row) * 2 + kind) * job.column_words +
                        share.column_word] = by_row;
    }
  }
  if (job.maps.visited == nullptr) return;
  visited = __reduce_add_sync(kAllLanes, visited);
  if (lane == 0 && visited > 0) atomicAdd(job.maps.visited, visited);
}

__global__ void __launch_bounds__(kThreads, 2) classify(IntervalsView mask, Jobs jobs) {
  extern __shared__ int memory[];
  const Share share(jobs);
  const Counts counts(memory, share.job.words);
  for (int i = threadIdx.x; i < Counts::integers(share.job.words); i += kThreads) memory[i] = 0;
  __syncthreads();
  mark_columns(mask, share, counts);
  __syncthreads();
  settle(mask, share, counts);
  __syncthreads();
  if (share.job.maps.by_row != nullptr) transpose_tiles(share, counts);
}

Job job_of(const TiledMaps& made, const MaskShape& mask) {
  const TileShape tile = made.tile;
  if (tile.columns % 32 != 0 || tile.rows < 2 || tile.rows > kMostTileRows)
    throw Error(Status::internal, "plan: tiles of " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns) +
                                      " have more than " + std::to_string(kMostTileRows) +
                                      " rows, or columns that are no multiple of 32");
  const TileGrid tiles(mask, tile);
  const std::int64_t columns = std::int64_t{tiles.lists} * tiles.column_words();
  int words = std::min(kMostWords, tiles.row_words());
  while (words > 1 && columns * divide_up(tiles.row_words(), words) < kEnoughBlocks) words /= 2;
  return {made.maps,
          tile.rows,
          tile.columns,
          tiles.rows,
          tiles.columns,
          tiles.row_words(),
          tiles.column_words(),
          words,
          divide_up(tiles.row_words(), words),
          0};
}

}  // namespace

TileGrid::TileGrid(const MaskShape& mask, TileShape tile)
    : lists(static_cast<int>(mask.batch * mask.heads)),
      rows(divide_up(static_cast<int>(mask.rows), tile.rows)),
      columns(divide_up(static_cast<int>(mask.columns), tile.columns)) {}

void make_tile_maps(const std::int32_t* const (&intervals)[4], const BlockView& blocks, const MaskShape& mask,
                    std::span<const TiledMaps> made, cudaStream_t stream) {
  if (mask.batch * mask.heads * mask.rows * mask.columns == 0) return;
  const IntervalsView view{{intervals[0], intervals[1], intervals[2], intervals[3]},
                           blocks,
                           static_cast<int>(mask.heads),
                           static_cast<int>(mask.rows),
                           static_cast<int>(mask.columns)};
  Jobs jobs{};
  int integers = 0;
  for (const TiledMaps& one : made) {
    Job& job = jobs.jobs[jobs.count++] = job_of(one, mask);
    job.first_block = jobs.blocks_of_list;
    jobs.blocks_of_list += job.blocks();
    integers = std::max(integers, Counts::integers(job.words));
  }
  const std::int64_t all_blocks = mask.batch * mask.heads * jobs.blocks_of_list;
  if (all_blocks > INT32_MAX)
    throw Error(Status::unsupported, "plan: the tiles of the mask's " + std::to_string(mask.batch * mask.heads) +
                                         " batch entries and heads take " + std::to_string(all_blocks) +
                                         " blocks of threads; expected less than 2^31: split the batch");
  classify<<<static_cast<unsigned>(all_blocks), kThreads, integers * sizeof(int), stream>>>(view, jobs);
  check(cudaGetLastError(), "plan: classify");
}

}  // namespace flashmask::cuda
