#include <cuda_runtime_api.h>

#include "cuda/device.h"
#include "cuda/status.h"
#include "cuda/tile_map.h"
#include "dispatch/device_plan.h"

namespace flashmask {
namespace {

constexpr std::size_t kAlignment = 256;
/// Of a map in finer tiles (8 MB): beyond, with many masks or very long ones, it costs more than it saves.
constexpr std::size_t kFinerWords = std::size_t{1} << 21;

/// Hands out the caller's memory piece by piece; without memory it only counts.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(std::size_t count) {
    T* const piece = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

struct Intervals {
  std::int32_t* values[4];
};

/// How the caller's memory is used.
struct Layout {
  Intervals intervals;
  cuda::TileMaps forward{}, finer{}, backward{};
  std::size_t bytes;

  Layout(const MaskShape& mask, const DeviceTileShapes& tiles, void* memory) {
    Pieces pieces(memory);
    for (std::int32_t*& array : intervals.values)
      array = pieces.take<std::int32_t>(static_cast<std::size_t>(mask.batch * mask.heads * mask.columns));
    forward = take_maps(pieces, mask, tiles.forward);
    if (tiles.finer.has_value() && is_worth_choosing(cuda::TileCounts(mask, *tiles.finer).by_row_words())) {
      finer = take_maps(pieces, mask, *tiles.finer);
      std::uint32_t* const visited = pieces.take<std::uint32_t>(2);
      forward.visited = visited;
      finer.visited = visited == nullptr ? nullptr : visited + 1;
    }
    if (tiles.backward.has_value())
      backward.by_column = pieces.take<std::uint32_t>(cuda::TileCounts(mask, *tiles.backward).by_column_words());
    bytes = pieces.bytes();
  }

 private:
  static bool is_worth_choosing(std::size_t words) { return words > 0 && words <= kFinerWords; }
  static cuda::TileMaps take_maps(Pieces& pieces, const MaskShape& mask, TileShape tile) {
    const cuda::TileCounts counts(mask, tile);
    std::uint32_t* const by_column = pieces.take<std::uint32_t>(counts.by_column_words());
    return {by_column, pieces.take<std::uint32_t>(counts.by_row_words())};
  }
};

struct Range {
  int begin, end;
};

__device__ Range clip(int begin, int end, int rows) {
  const Range range{max(begin, 0), min(end, rows)};
  return range.begin < range.end ? range : Range{0, 0};
}

/// One thread a column: its vectors, as masks.md tells them, become two ranges in IntervalMask's normal form.
__global__ void lower_row_indices(DeviceRowIndices rows, Intervals out, std::int64_t columns) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= columns) return;
  const std::int32_t* given = rows.values + at * rows.vectors;
  const int end = static_cast<int>(rows.shape.rows);
  const auto diagonal = static_cast<int>(at % rows.shape.columns + rows.shape.rows - rows.shape.columns);
  Range lower{}, upper{};
  if (rows.causal) {
    lower = clip(given[0], rows.vectors == 2 ? given[1] : end, end);
    upper = clip(0, diagonal, end);
  } else if (rows.vectors == 2) {
    lower = clip(given[0], end, end);
    upper = clip(0, given[1], end);
  } else {
    lower = clip(given[0], given[1], end);
    upper = clip(given[2], given[3], end);
  }
  const bool swap = lower.begin == lower.end || (upper.begin < upper.end && upper.begin < lower.begin);
  Range first = swap ? upper : lower, second = swap ? lower : upper;
  if (second.begin < second.end && second.begin <= first.end) {
    first.end = max(first.end, second.end);
    second = {0, 0};
  }
  out.values[0][at] = first.begin;
  out.values[1][at] = first.end;
  out.values[2][at] = second.begin;
  out.values[3][at] = second.end;
}

DevicePlan classify(const MaskShape& mask, const DeviceTileShapes& tiles, const Layout& layout, void* stream) {
  const auto& values = layout.intervals.values;
  const std::int32_t* const intervals[4] = {values[0], values[1], values[2], values[3]};
  const auto make_maps = [&](TileShape tile, const cuda::TileMaps& maps) {
    cuda::make_tile_map(intervals, mask, tile, maps, static_cast<cudaStream_t>(stream));
  };
  DevicePlan plan{};
  plan.mask = {mask, {values[0], values[1], values[2], values[3]}};
  make_maps(tiles.forward, layout.forward);
  plan.forward = {tiles.forward, layout.forward.by_row, nullptr};
  if (layout.finer.by_row != nullptr) {
    make_maps(*tiles.finer, layout.finer);
    plan.finer = {*tiles.finer, layout.finer.by_row, nullptr};
    plan.visited = layout.forward.visited;
  }
  if (!tiles.backward.has_value()) return plan;
  make_maps(*tiles.backward, layout.backward);
  plan.backward = {*tiles.backward, nullptr, layout.backward.by_column};
  return plan;
}

}  // namespace

std::size_t device_plan_bytes(const MaskShape& mask, const DeviceTileShapes& tiles) {
  return Layout(mask, tiles, nullptr).bytes;
}

DevicePlan make_device_plan(const IntervalMask& mask, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place) {
  const cuda::CurrentDevice current(device);
  const MaskShape& shape = mask.shape();
  const Layout layout(shape, tiles, place.memory);
  const std::int32_t* const values[4] = {mask.first_begin(), mask.first_end(), mask.second_begin(), mask.second_end()};
  const std::size_t bytes = static_cast<std::size_t>(shape.batch * shape.heads * shape.columns) * sizeof(std::int32_t);
  for (int i = 0; i < 4; ++i)
    cuda::check(cudaMemcpyAsync(layout.intervals.values[i], values[i], bytes, cudaMemcpyHostToDevice,
                                static_cast<cudaStream_t>(place.stream)),
                "plan: copying the mask");
  return classify(shape, tiles, layout, place.stream);
}

DevicePlan make_device_plan(const DeviceRowIndices& rows, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place) {
  const cuda::CurrentDevice current(device);
  const Layout layout(rows.shape, tiles, place.memory);
  const std::int64_t columns = rows.shape.batch * rows.shape.heads * rows.shape.columns;
  constexpr int kThreads = 256;
  if (columns > 0) {
    lower_row_indices<<<static_cast<unsigned>((columns + kThreads - 1) / kThreads), kThreads, 0,
                        static_cast<cudaStream_t>(place.stream)>>>(rows, layout.intervals, columns);
    cuda::check(cudaGetLastError(), "plan: lower_row_indices");
  }
  return classify(rows.shape, tiles, layout, place.stream);
}

}  // namespace flashmask
