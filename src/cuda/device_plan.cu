#include <cuda_runtime_api.h>

#include "cuda/device.h"
#include "cuda/status.h"
#include "cuda/tile_map.h"
#include "dispatch/device_plan.h"

namespace flashmask {
namespace {

constexpr std::size_t kAlignment = 256;

/// How the caller's memory is used: the four arrays of the intervals, then the two maps.
struct Layout {
  std::size_t array_bytes, by_column_bytes, by_row_bytes;

  Layout(const MaskShape& mask, TileShape tile) {
    const cuda::TileCounts tiles(mask, tile);
    array_bytes = round_up(static_cast<std::size_t>(mask.batch * mask.heads * mask.columns) * sizeof(std::int32_t));
    by_column_bytes = round_up(tiles.by_column_words() * sizeof(std::uint32_t));
    by_row_bytes = round_up(tiles.by_row_words() * sizeof(std::uint32_t));
  }
  std::size_t bytes() const { return 4 * array_bytes + by_column_bytes + by_row_bytes; }

 private:
  static std::size_t round_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
};

struct Arrays {
  std::int32_t* values[4];
};

Arrays arrays_in(const PlanPlace& place, const Layout& layout) {
  Arrays arrays{};
  for (int i = 0; i < 4; ++i)
    arrays.values[i] = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(place.memory) + i * layout.array_bytes);
  return arrays;
}

struct Range {
  int begin, end;
};

__device__ Range clip(int begin, int end, int rows) {
  const Range range{max(begin, 0), min(end, rows)};
  return range.begin < range.end ? range : Range{0, 0};
}

/// One thread a column: its vectors, as masks.md tells them, become two ranges in IntervalMask's normal form.
__global__ void lower_row_indices(DeviceRowIndices rows, Arrays out, std::int64_t columns) {
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

DevicePlan classify(const MaskShape& mask, TileShape tile, const PlanPlace& place, const Layout& layout) {
  const Arrays arrays = arrays_in(place, layout);
  std::byte* after = static_cast<std::byte*>(place.memory) + 4 * layout.array_bytes;
  auto* by_column = reinterpret_cast<std::uint32_t*>(after);
  auto* by_row = reinterpret_cast<std::uint32_t*>(after + layout.by_column_bytes);
  const std::int32_t* const intervals[4] = {arrays.values[0], arrays.values[1], arrays.values[2], arrays.values[3]};
  cuda::make_tile_map(intervals, mask, tile, by_column, by_row, static_cast<cudaStream_t>(place.stream));
  return {mask, tile, {intervals[0], intervals[1], intervals[2], intervals[3]}, by_row};
}

}  // namespace

std::size_t device_plan_bytes(const MaskShape& mask, TileShape tile) { return Layout(mask, tile).bytes(); }

DevicePlan make_device_plan(const IntervalMask& mask, TileShape tile, Device device, const PlanPlace& place) {
  const cuda::CurrentDevice current(device);
  const Layout layout(mask.shape(), tile);
  const Arrays arrays = arrays_in(place, layout);
  const std::int32_t* const values[4] = {mask.first_begin(), mask.first_end(), mask.second_begin(), mask.second_end()};
  const MaskShape& shape = mask.shape();
  const std::size_t bytes = static_cast<std::size_t>(shape.batch * shape.heads * shape.columns) * sizeof(std::int32_t);
  for (int i = 0; i < 4; ++i)
    cuda::check(cudaMemcpyAsync(arrays.values[i], values[i], bytes, cudaMemcpyHostToDevice,
                                static_cast<cudaStream_t>(place.stream)),
                "plan: copying the mask");
  return classify(shape, tile, place, layout);
}

DevicePlan make_device_plan(const DeviceRowIndices& rows, TileShape tile, Device device, const PlanPlace& place) {
  const cuda::CurrentDevice current(device);
  const Layout layout(rows.shape, tile);
  const std::int64_t columns = rows.shape.batch * rows.shape.heads * rows.shape.columns;
  constexpr int kThreads = 256;
  if (columns > 0) {
    lower_row_indices<<<static_cast<unsigned>((columns + kThreads - 1) / kThreads), kThreads, 0,
                        static_cast<cudaStream_t>(place.stream)>>>(rows, arrays_in(place, layout), columns);
    cuda::check(cudaGetLastError(), "plan: lower_row_indices");
  }
  return classify(rows.shape, tile, place, layout);
}

}  // namespace flashmask
