// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/tile_walk.cuh"

namespace flashmask::cuda::sm80 {

/// The lists that a block walks: of an outer tile, for each of some query heads.
struct TileLists {
  TileMapView map;
  int batch, first_head, heads, outer_tile;
  bool all_masked;  // full tiles need masks as well
};

/// A tile that a block visits.
struct TileStep {
  int tile;  // the inner one; -1: there is no further step
  int marks;

  __device__ __forceinline__ TileStep(int inner, int head, bool masked)
      : tile(inner), marks(2 * head + (masked ? 1 : 0)) {}
  __device__ __forceinline__ bool exists() const { return tile >= 0; }
  /// Counted from the lists' first.
  __device__ __forceinline__ int head() const { return marks >> 1; }
  /// Whether some scores may be masked.
  __device__ __forceinline__ bool masked() const { return (marks & 1) != 0; }
};

/// The steps of a block, head after head: of each, partial tiles and then full ones, in ascending order. They lie in
/// shared memory. All warps read the first ones, one of them the others, some tiles ahead.
class TileSteps {
  static constexpr int kSlots = 64, kAhead = 2, kMostWarps = 8;

  /// At 32 words of a head's tiles of one kind (TileList).
  struct Look {
    int head, kind, word;
  };

 public:
  __device__ __forceinline__ TileStep operator[](int step) const {
    const int2 found = steps_[step % kSlots];
    return {found.x, found.y >> 1, (found.y & 1) != 0};
  }

  /// By all kWarps of a block, before extend(0) and a barrier: steps that they find in one look of each, all of a short
  /// list. meanwhile(): what can be done while the map is on its way.
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

  /// When the block has begun the first `begun` steps: the first warp writes the next kAhead at least. The last two of
  /// those begun are still there.
  __device__ __forceinline__ void extend(const TileLists& lists, int begun) {
    if (wants(begun)) read_on(lists, begun);
  }
  /// The same by a call, so that a loop has little code; a call costs what is short of registers two of them.
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
  /// The first of the next kind.
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

  /// Of the lane's word.
  static __device__ __forceinline__ std::uint32_t tiles_of(const TileLists& lists, const Look& look, int lane) {
    if (look.word + lane >= lists.map.words) return 0;
    const TileList list(lists.map, lists.batch, lists.first_head + look.head, lists.outer_tile);
    return list.tiles_of(look.kind, look.word + lane);
  }

  __device__ __forceinline__ void write(int step, TileStep what) { steps_[step % kSlots] = {what.tile, what.marks}; }

  /// The warp has written so many, and looks there next.
  __device__ __forceinline__ void end_at(const TileLists& lists, const Look& next, int written) {
    if (lane_index() != 0) return;
    const bool ended = next.head >= lists.heads;
    if (ended) write(written, {-1, 0, false});
    next_ = next;
    written_ = written;
    known_ = ended ? 1 << 30 : written;
  }

  TileLists lists_;  // for a call, whose arguments take registers
  int2 steps_[kSlots];
  int found_[kMostWarps];
  Look next_;  // at the map
  int written_;
  int known_;  // as written_, and no end once all are
};

}  // namespace flashmask::cuda::sm80
