// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/tile_walk.cuh"

namespace flashmask::cuda::sm80 {

/// The lists that a block walks: one outer tile's, one for each of `heads` query heads.
struct TileLists {
  TileMapView map;
  int batch, first_head, heads, outer_tile;
  bool all_masked;  // full tiles need masks as well
};

/// A tile that a block visits.
struct TileStep {
  int tile;  // the inner tile; -1: there are no more steps
  int marks;

  __device__ __forceinline__ TileStep(int inner, int head, bool masked)
      : tile(inner), marks(2 * head + (masked ? 1 : 0)) {}
  __device__ __forceinline__ bool exists() const { return tile >= 0; }
  /// Returns the query head, counted from the lists' first.
  __device__ __forceinline__ int head() const { return marks >> 1; }
  /// Returns whether some scores may be masked.
  __device__ __forceinline__ bool masked() const { return (marks & 1) != 0; }
};

/// The steps of a block, head after head: a head's partial tiles and then its full ones, each in ascending order. They
/// lie in shared memory. All warps read the first ones from the map; one warp reads the others, some tiles ahead.
class TileSteps {
  static constexpr int kSlots = 64, kAhead = 2, kMostWarps = 8;

  /// A position in the map: 32 words of one head's tiles of one kind (TileList).
  struct Look {
    int head, kind, word;
  };

 public:
  __device__ __forceinline__ TileStep operator[](int step) const {
    const int2 found = steps_[step % kSlots];
    return {found.x, found.y >> 1, (found.y & 1) != 0};
  }

  /// Writes the steps that the kWarps warps of a block find in one look each, if there is room for them; of a short
  /// list these are all steps. All warps call it, before extend(0) and a barrier. meanwhile() does what can be done
  /// while the map is being read.
  template <int kWarps, class Meanwhile>
  __device__ __forceinline__ void begin(const TileLists& lists, const Meanwhile& meanwhile) {
    static_assert(kWarps <= kMostWarps);
    const int lane = lane_index(), warp = static_cast<int>(thread_index()) / 32;
    const Look look = nth_look(lists, warp);
    std::uint32_t own = look.head < lists.heads ? tiles_of(lists, look, lane) : 0;
    if (thread_index() == 0) lists_ = lists;
    meanwhile();
    int step = __popc(own);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(~0U, step, distance);
      if (lane >= distance) step += before;
    }
    if (lane == 31) found_[warp] = step;
    step -= __popc(own);
    __syncthreads();
    int all = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      if (other == warp) step += all;
      all += found_[other];
    }
    const bool fits = all <= kSlots - 4;
    if (fits)
      for (; own != 0; own &= own - 1)
        write(step++, {(look.word + lane) * 32 + __ffs(static_cast<int>(own)) - 1, look.head, masked(lists, look)});
    if (warp != 0) return;
    const Look next = fits ? nth_look(lists, kWarps) : Look{0, 0, 0};
    end_at(lists, next, fits ? all : 0);
    __syncwarp();
  }

  /// Makes the first warp write at least kAhead more steps when the block has begun the first `begun`. The last two of
  /// those begun remain readable.
  __device__ __forceinline__ void extend(const TileLists& lists, int begun) {
    if (wants(begun)) read_on(lists, begun);
  }
  /// Out-of-line extend(): keeps a loop's code short, but costs two registers in kernels that are short of them.
  __device__ __forceinline__ void extend_by_call(int begun) {
    if (wants(begun)) call_read_on(begun);
  }

 private:
  __device__ __forceinline__ bool wants(int begun) const { return known_ < begun + kAhead && thread_index() < 32; }
  [[gnu::noinline]] __device__ void call_read_on(int begun) { read_on(lists_, begun); }

  __device__ __forceinline__ void read_on(const TileLists& lists, int begun) {
    const int lane = lane_index(), room = begun - 3 + kSlots - 32;
    int written = written_;
    Look look = next_;
    __syncwarp();
    while (look.head < lists.heads && written < begun + kAhead) {
      const std::uint32_t own = tiles_of(lists, look, lane);
      int next = look.word + 32;
      for (std::uint32_t some = __ballot_sync(~0U, own != 0); some != 0; some &= some - 1) {
        const int holder = __ffs(static_cast<int>(some)) - 1;
        if (written > room) {
          next = look.word + holder;
          break;
        }
        const std::uint32_t tiles = __shfl_sync(~0U, own, holder);
        if (tiles >> lane & 1)
          write(written + __popc(tiles & ((1U << lane) - 1)),
                {(look.word + holder) * 32 + lane, look.head, masked(lists, look)});
        written += __popc(tiles);
      }
      look.word = next;
      if (look.word >= lists.map.words) look = behind(lists, look);
    }
    end_at(lists, look, written);
    __syncwarp();
  }

  static __device__ __forceinline__ int kinds(const TileLists& lists) { return lists.map.visit_all ? 3 : 2; }
  static __device__ __forceinline__ bool masked(const TileLists& lists, const Look& look) {
    return lists.all_masked || lists.map.visit_all || look.kind == 0;
  }
  /// Returns the first look at the next kind, or at the next head.
  static __device__ __forceinline__ Look behind(const TileLists& lists, const Look& look) {
    if (look.kind + 1 < kinds(lists)) return {look.head, look.kind + 1, 0};
    return {look.head + 1, 0, 0};
  }
  static __device__ __forceinline__ Look nth_look(const TileLists& lists, int number) {
    const int of_kind = max((lists.map.words + 31) / 32, 1);
    Look look{0, 0, 0};
    for (; number >= of_kind; number -= of_kind) look = behind(lists, look);
    look.word = 32 * number;
    return look;
  }

  /// Returns the tiles in the lane's word.
  static __device__ __forceinline__ std::uint32_t tiles_of(const TileLists& lists, const Look& look, int lane) {
    if (look.word + lane >= lists.map.words) return 0;
    const TileList list(lists.map, lists.batch, lists.first_head + look.head, lists.outer_tile);
    return list.tiles_of(look.kind, look.word + lane);
  }

  __device__ __forceinline__ void write(int step, TileStep what) { steps_[step % kSlots] = {what.tile, what.marks}; }

  /// Saves the progress: how many steps are written, and which words of the map come next.
  __device__ __forceinline__ void end_at(const TileLists& lists, const Look& next, int written) {
    if (lane_index() != 0) return;
    const bool ended = next.head >= lists.heads;
    if (ended) write(written, {-1, 0, false});
    next_ = next;
    written_ = written;
    known_ = ended ? 1 << 30 : written;
  }

  TileLists lists_;  // for call_read_on(), since arguments would take registers
  int2 steps_[kSlots];
  int found_[kMostWarps];
  Look next_;  // the next look at the map
  int written_;
  int known_;  // as written_, but 1 << 30 once all steps are written
};

}  // namespace flashmask::cuda::sm80
