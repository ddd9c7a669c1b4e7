// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "cuda/plan/classify.cuh"
#include "cuda/plan/tile_map.h"

namespace flashmask::cuda {
namespace {

/// The most words of row tiles that a block takes: enough that columns of the mask are seldom read again; blocks take
/// fewer words where kEnoughBlocks would not be reached.
constexpr int kMostWords = 64, kEnoughBlocks = 64;

/// The maps to make in one tile shape, and the share of them that a block takes.
struct Job {
  TileMaps maps;
  Tiling tiling;
  int words, slices;  // words per block; slices per column of tiles
  int first_block;    // its first among the blocks of a list

  int blocks() const { return tiling.column_words * slices; }
};

/// The blocks of a list are consecutive across all jobs, so that its columns are still in the cache.
struct Jobs {
  Job jobs[kMostMaps];
  int count, blocks_of_list;

  __device__ const Job& of(int block) const {
    int job = count - 1;
    while (block < jobs[job].first_block) --job;
    return jobs[job];
  }
};

__device__ Share share_of(const Job& job, int list, int block) {
  const int first_word = block / job.tiling.column_words * job.words;
  return {job.tiling, list, block % job.tiling.column_words, first_word,
          min(job.words, job.tiling.row_words - first_word)};
}

__global__ void __launch_bounds__(kClassifyThreads, 2) classify(IntervalsView mask, Jobs jobs) {
  extern __shared__ int memory[];
  const int block = static_cast<int>(blockIdx.x) % jobs.blocks_of_list;
  const Job& job = jobs.of(block);
  const Tiling& tiling = job.tiling;
  const Share share = share_of(job, static_cast<int>(blockIdx.x) / jobs.blocks_of_list, block - job.first_block);
  const Counts counts(memory, job.words);
  classify_share(mask, share, memory, counts, [&](int tile, int word, std::uint32_t partial, std::uint32_t full) {
    if (job.maps.by_column == nullptr) return;
    const std::int64_t line =
        static_cast<std::int64_t>(share.list) * tiling.column_tiles + share.column_word * kTiles + tile;
    std::uint32_t* const out = job.maps.by_column + line * 2 * tiling.row_words + share.first_word + word;
    out[0] = partial;
    out[tiling.row_words] = full;
  });
  if (job.maps.by_row == nullptr && job.maps.visited == nullptr) return;
  transpose_tiles(share, counts, job.maps.visited, [&](int row, int kind, std::uint32_t word) {
    if (job.maps.by_row == nullptr) return;
    const std::int64_t line = static_cast<std::int64_t>(share.list) * tiling.row_tiles + share.first_word * 32 + row;
    job.maps.by_row[(line * 2 + kind) * tiling.column_words + share.column_word] = word;
  });
}

Job job_of(const TiledMaps& made, const MaskShape& mask) {
  const Tiling tiling(mask, made.tile);
  const std::int64_t columns = mask.batch * mask.heads * tiling.column_words;
  int words = std::min(kMostWords, tiling.row_words);
  while (words > 1 && columns * divide_up(tiling.row_words, words) < kEnoughBlocks) words /= 2;
  return {made.maps, tiling, words, divide_up(tiling.row_words, words), 0};
}

}  // namespace

TileGrid::TileGrid(const MaskShape& mask, TileShape tile)
    : lists(static_cast<int>(mask.batch * mask.heads)),
      rows(divide_up(static_cast<int>(mask.rows), tile.rows)),
      columns(divide_up(static_cast<int>(mask.columns), tile.columns)) {}

void make_tile_maps(const std::int32_t* const (&intervals)[4], const BlockView& blocks, const MaskShape& mask,
                    std::span<const TiledMaps> made, cudaStream_t stream) {
  if (made.empty() || mask.batch * mask.heads * mask.rows * mask.columns == 0) return;
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
  classify<<<static_cast<unsigned>(all_blocks), kClassifyThreads, integers * sizeof(int), stream>>>(view, jobs);
  check(cudaGetLastError(), "plan: classify");
}

}  // namespace flashmask::cuda
