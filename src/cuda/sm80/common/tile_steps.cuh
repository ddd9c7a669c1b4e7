#pragma once

#include "cuda/common/tile_walk.cuh"

namespace flashmask::cuda::sm80 {

/// The lists that a block walks: of an outer tile, for each of some query heads.
struct TileLists {
  const TileMapView& map;
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

/// The steps of a block, head after head: of each, partial tiles and then full ones, in ascending order. One warp reads
/// the map some tiles ahead and writes steps into shared memory; the others see them behind a barrier.
class TileSteps {
  static constexpr int kSlots = 64, kAhead = 3;

 public:
  __device__ __forceinline__ TileStep operator[](int step) const {
    const int2 found = steps_[step % kSlots];
    return {found.x, found.y >> 1, (found.y & 1) != 0};
  }

  /// By one warp, before extend().
  __device__ __forceinline__ void begin() {
    __syncwarp();
    if (lane_index() == 0) {
      head_ = kind_ = word_ = written_ = 0;
      ended_ = false;
    }
    __syncwarp();
  }

  /// By the same warp, when the block has begun the first `begun` steps: writes the next kAhead at least. The last two
  /// of those begun are still there.
  __device__ __forceinline__ void extend(const TileLists& lists, int begun) {
    const int lane = lane_index();
    int head = head_, kind = kind_, word = word_, written = written_;
    if (written >= begun + kAhead || ended_) return;
    __syncwarp();
    const TileMapView& map = lists.map;
    const int kinds = map.visit_all ? 3 : 2, room = begun - 3 + kSlots - 32;
    while (head < lists.heads && written <= room) {
      const TileList list(map, lists.batch, lists.first_head + head, lists.outer_tile);
      const bool masked = lists.all_masked || map.visit_all || kind == 0;
      const std::uint32_t own = word + lane < map.words ? list.tiles_of(kind, word + lane) : 0;
      int next = word + 32;
      for (std::uint32_t some = __ballot_sync(~0U, own != 0); some != 0; some &= some - 1) {
        const int holder = __ffs(static_cast<int>(some)) - 1;
        if (written > room) {
          next = word + holder;
          break;
        }
        const std::uint32_t tiles = __shfl_sync(~0U, own, holder);
        if (tiles >> lane & 1)
          write(written + __popc(tiles & ((1U << lane) - 1)), {(word + holder) * 32 + lane, head, masked});
        written += __popc(tiles);
      }
      word = next;
      if (word < map.words) continue;
      word = 0;
      if (++kind < kinds) continue;
      kind = 0;
      ++head;
    }
    if (lane == 0) {
      ended_ = head == lists.heads;
      if (ended_) write(written, {-1, 0, false});
      head_ = head;
      kind_ = kind;
      word_ = word;
      written_ = written;
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void write(int step, TileStep what) { steps_[step % kSlots] = {what.tile, what.marks}; }

  int2 steps_[kSlots];
  int head_, kind_, word_;  // where the map is read next
  int written_;
  bool ended_;
};

}  // namespace flashmask::cuda::sm80
