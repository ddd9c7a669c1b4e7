#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/plan/bit_cells.h"
#include "cuda/plan/row_spans.h"
#include "cuda/plan/tile_map.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/block_map.h"
#include "plan/device_plan.h"

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

/// A BitMask's arrays, to be copied from the host.
struct HostCells {
  std::int64_t* offsets = nullptr;
  Run* runs = nullptr;
  std::int64_t* first_cells = nullptr;
  std::uint64_t* words = nullptr;
};

/// How the caller's memory is used; a mask leaves out what it has no use for.
struct Layout {
  Intervals intervals{};
  std::uint8_t* blocks = nullptr;  // of a map that is copied from the host
  bool as_bits = false;
  cuda::BitStorage bits{};
  HostCells host_cells;
  std::int64_t *row_order = nullptr, *column_order = nullptr;
  cuda::TileMaps forward{}, finer{}, backward{}, second{}, finer_backward{};
  cuda::RowSpans spans{};
  std::int32_t* zeros = nullptr;  // what counts from 0 on: visited tiles and `spans`
  std::size_t zero_count = 0;
  std::size_t bytes;

  Layout(const DeviceSource& source, const DeviceTileShapes& tiles, void* memory) : pieces_(memory) {
    const MaskShape mask = std::visit([this](const auto* from) { return take_mask(*from); }, source);
    forward = take_rows(mask, tiles.forward);
    const bool choosing = is_worth_choosing(mask, tiles.finer);
    if (choosing) finer = take_rows(mask, *tiles.finer);
    if (tiles.backward.has_value())
      backward.by_column = pieces_.take<std::uint32_t>(cuda::TileCounts(mask, *tiles.backward).by_column_words());
    if (tiles.second.has_value()) second = *tiles.second == tiles.forward ? forward : take_rows(mask, *tiles.second);
    const bool choosing_backward = is_worth_choosing(mask, tiles.finer_backward);
    if (choosing_backward) {
      finer_backward = take_rows(mask, *tiles.finer_backward);
      finer_backward.by_column =
          pieces_.take<std::uint32_t>(cuda::TileCounts(mask, *tiles.finer_backward).by_column_words());
    }
    const bool adding = tiles.backward.has_value() && !tiles.second.has_value();
    take_zeros(choosing, choosing_backward, adding ? cuda::TileCounts(mask, *tiles.backward).rows : 0);
    bytes = pieces_.bytes();
  }

 private:
  static bool is_worth_choosing(const MaskShape& mask, const std::optional<TileShape>& finer) {
    const std::size_t words = finer.has_value() ? cuda::TileCounts(mask, *finer).by_row_words() : 0;
    return words > 0 && words <= kFinerWords;
  }
  cuda::TileMaps take_rows(const MaskShape& mask, TileShape tile) {
    return {nullptr, pieces_.take<std::uint32_t>(cuda::TileCounts(mask, tile).by_row_words())};
  }

  /// Together, so that one call of the driver clears them.
  void take_zeros(bool choosing, bool choosing_backward, int row_tiles) {
    const std::size_t of_visited = (choosing ? 2 : 0) + (choosing_backward ? 1 : 0),
                      of_spans = row_tiles == 0 ? 0 : std::size_t{2} * row_tiles + 1;
    zero_count = of_visited + of_spans;
    zeros = pieces_.take<std::int32_t>(zero_count);
    if (zeros == nullptr) return;
    auto* visited = reinterpret_cast<std::uint32_t*>(zeros);
    if (choosing) {
      forward.visited = visited++;
      finer.visited = visited++;
    }
    if (choosing_backward) finer_backward.visited = visited;
    std::int32_t* const of_rows = zeros + of_visited;
    if (row_tiles != 0) spans = {of_rows, of_rows + row_tiles, of_rows + 2 * row_tiles};
  }

  MaskShape take_mask(const HostMask& host) {
    const LoweredMask& mask = host.lowered;
    if (host.reordering != nullptr) {
      row_order = pieces_.take<std::int64_t>(host.reordering->rows.size());
      column_order = pieces_.take<std::int64_t>(host.reordering->columns.size());
    }
    if (mask.form() == MaskForm::intervals) {
      take_intervals(mask.shape());
      if (mask.blocks() != nullptr) blocks = pieces_.take<std::uint8_t>(mask.blocks()->memory_bytes());
    } else {
      take_host_cells(mask.bits());
    }
    return mask.shape();
  }
  MaskShape take_mask(const DeviceRowIndices& rows) {
    take_intervals(rows.shape);
    return rows.shape;
  }
  template <class AllCells>
  MaskShape take_mask(const AllCells& mask) {
    take_cells(mask.shape, cuda::cell_count(mask.shape));
    return mask.shape;
  }

  void take_intervals(const MaskShape& mask) {
    for (std::int32_t*& array : intervals.values)
      array = pieces_.take<std::int32_t>(static_cast<std::size_t>(mask.batch * mask.heads * mask.columns));
  }
  void take_cells(const MaskShape& mask, std::size_t stored) {
    as_bits = true;
    bits.words = pieces_.take<std::uint32_t>((stored + DeviceBits::kShared) * DeviceBits::kCellWords);
    bits.stored = static_cast<std::uint32_t>(stored);
    bits.granules = pieces_.take<std::uint32_t>(cuda::granule_words(mask));
  }
  void take_host_cells(const BitMask& mask) {
    const auto stored = static_cast<std::size_t>(mask.partial_cells());
    take_cells(mask.shape(), stored);
    bits.index = pieces_.take<CellEntry>(cuda::cell_entries(mask.shape()));
    host_cells.offsets = pieces_.take<std::int64_t>(mask.cells().offsets.size());
    host_cells.runs = pieces_.take<Run>(mask.cells().runs.size());
    host_cells.first_cells = pieces_.take<std::int64_t>(mask.cells().runs.size());
    host_cells.words = pieces_.take<std::uint64_t>(stored * BitMask::kCell);
  }

  Pieces pieces_;
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

/// Puts a mask into its place on the device.
class Filler {
 public:
  Filler(const Layout& layout, void* stream) : layout_(layout), stream_(static_cast<cudaStream_t>(stream)) {}

  void fill(const HostMask& host) const {
    if (host.reordering != nullptr) {
      copy(layout_.row_order, host.reordering->rows.data(), host.reordering->rows.size());
      copy(layout_.column_order, host.reordering->columns.data(), host.reordering->columns.size());
    }
    if (host.lowered.form() == MaskForm::bits) {
      fill(host.lowered.bits());
    } else {
      fill_intervals(host.lowered);
    }
  }

  void fill(const DeviceRowIndices& rows) const {
    const std::int64_t columns = rows.shape.batch * rows.shape.heads * rows.shape.columns;
    constexpr int kThreads = 256;
    if (columns == 0) return;
    lower_row_indices<<<static_cast<unsigned>((columns + kThreads - 1) / kThreads), kThreads, 0, stream_>>>(
        rows, layout_.intervals, columns);
    cuda::check(cudaGetLastError(), "plan: lower_row_indices");
  }

  void fill(const DeviceDenseMask& mask) const { cuda::pack_cells(mask, layout_.bits, stream_); }
  void fill(const DevicePackedMask& mask) const { cuda::pack_cells(mask, layout_.bits, stream_); }

 private:
  void fill_intervals(const LoweredMask& mask) const {
    const IntervalMask& from = mask.intervals();
    const std::int32_t* const values[4] = {from.first_begin(), from.first_end(), from.second_begin(),
                                           from.second_end()};
    const MaskShape& shape = mask.shape();
    for (int i = 0; i < 4; ++i)
      copy(layout_.intervals.values[i], values[i], static_cast<std::size_t>(shape.batch * shape.heads * shape.columns));
    if (mask.blocks() != nullptr) copy(layout_.blocks, mask.blocks()->row(0, 0, 0), mask.blocks()->memory_bytes());
  }

  void fill(const BitMask& mask) const {
    const HostCells& to = layout_.host_cells;
    copy(to.offsets, mask.cells().offsets.data(), mask.cells().offsets.size());
    copy(to.runs, mask.cells().runs.data(), mask.cells().runs.size());
    copy(to.first_cells, mask.first_cells(), mask.cells().runs.size());
    copy(to.words, mask.words(), static_cast<std::size_t>(mask.partial_cells()) * BitMask::kCell);
    cuda::pack_cells({to.offsets, to.runs, to.first_cells, to.words}, mask.shape(), layout_.bits, stream_);
  }

  /// Memory of the host may go once this returns: the driver has taken what is not on the device yet.
  template <class T>
  void copy(T* to, const T* from, std::size_t count) const {
    if (count == 0) return;
    cuda::check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, stream_),
                "plan: copying the mask");
  }

  const Layout& layout_;
  cudaStream_t stream_;
};

cuda::KeptBlocks blocks_of(const HostMask& mask, const Layout& layout) {
  if (mask.lowered.blocks() == nullptr) return {};
  const BlockMap& map = *mask.lowered.blocks();
  const MaskShape& shape = map.shape();
  return {.keep = layout.blocks,
          .wide = false,
          .batch = static_cast<int>(shape.batch),
          .heads = static_cast<int>(shape.heads),
          .rows = static_cast<int>(map.block_rows()),
          .columns = static_cast<int>(map.block_columns()),
          .block = static_cast<int>(map.block())};
}

cuda::KeptBlocks blocks_of(const DeviceRowIndices& rows, const Layout&) {
  const cuda::TileCounts blocks(rows.shape, {DeviceBlockMap::kBlock, DeviceBlockMap::kBlock});
  return {.keep = rows.blocks.keep,
          .wide = true,
          .batch = static_cast<int>(rows.blocks.batch),
          .heads = static_cast<int>(rows.blocks.heads),
          .rows = blocks.rows,
          .columns = blocks.columns,
          .block = DeviceBlockMap::kBlock};
}

template <class AllCells>
cuda::KeptBlocks blocks_of(const AllCells&, const Layout&) {
  return {};
}

DeviceMask device_mask(const MaskShape& shape, const Layout& layout) {
  const auto& values = layout.intervals.values;
  return {
      shape, {values[0], values[1], values[2], values[3]}, {layout.bits.words, layout.bits.index, layout.bits.stored}};
}

/// All maps of a plan; those in tiles of one shape are made together.
std::vector<cuda::TiledMaps> maps_of(const DeviceTileShapes& tiles, const Layout& layout) {
  std::vector<cuda::TiledMaps> maps = {{tiles.forward, layout.forward}};
  if (layout.finer.by_row != nullptr) maps.push_back({*tiles.finer, layout.finer});
  if (tiles.second.has_value() && layout.second.by_row != layout.forward.by_row)
    maps.push_back({*tiles.second, layout.second});
  if (layout.finer_backward.by_row != nullptr) maps.push_back({*tiles.finer_backward, layout.finer_backward});
  if (!tiles.backward.has_value()) return maps;
  for (cuda::TiledMaps& one : maps)
    if (one.tile == *tiles.backward) {
      one.maps.by_column = layout.backward.by_column;
      return maps;
    }
  maps.push_back({*tiles.backward, layout.backward});
  return maps;
}

template <class Source>
void classify(const Source& source, const MaskShape& shape, const DeviceTileShapes& tiles, const Layout& layout,
              cudaStream_t stream) {
  const std::vector<cuda::TiledMaps> maps = maps_of(tiles, layout);
  if (layout.zero_count != 0)
    cuda::check(cudaMemsetAsync(layout.zeros, 0, layout.zero_count * sizeof(*layout.zeros), stream),
                "plan: clearing the counts of tiles");
  if (layout.as_bits) {
    for (const cuda::TiledMaps& one : maps)
      cuda::make_tile_map(layout.bits.granules, shape, one.tile, one.maps, stream);
  } else {
    const auto& values = layout.intervals.values;
    cuda::make_tile_maps({values[0], values[1], values[2], values[3]}, blocks_of(source, layout), shape, maps, stream);
  }
  if (layout.spans.from != nullptr)
    cuda::find_row_spans(layout.backward.by_column, cuda::TileCounts(shape, *tiles.backward), layout.spans, stream);
}

/// What kernels find in the layout.
DevicePlan plan_in(const Layout& layout, const MaskShape& shape, const DeviceTileShapes& tiles) {
  DevicePlan plan{};
  plan.mask = device_mask(shape, layout);
  plan.row_order = layout.row_order;
  plan.column_order = layout.column_order;
  const auto made = [](TileShape tile, const cuda::TileMaps& maps) {
    return DeviceTiles{tile, maps.by_row, maps.by_column, maps.visited};
  };
  plan.forward = made(tiles.forward, layout.forward);
  if (layout.finer.by_row != nullptr) plan.finer = made(*tiles.finer, layout.finer);
  if (tiles.backward.has_value()) plan.backward = made(*tiles.backward, layout.backward);
  if (tiles.second.has_value()) plan.second = made(*tiles.second, layout.second);
  if (layout.finer_backward.by_row != nullptr) plan.finer_backward = made(*tiles.finer_backward, layout.finer_backward);
  plan.spans = {layout.spans.from, layout.spans.until};
  return plan;
}

const MaskShape& shape_of(const HostMask& mask) { return mask.lowered.shape(); }
template <class OnDevice>
const MaskShape& shape_of(const OnDevice& mask) {
  return mask.shape;
}

}  // namespace

std::size_t device_plan_bytes(const DeviceSource& source, const DeviceTileShapes& tiles) {
  return Layout(source, tiles, nullptr).bytes;
}

DevicePlan make_device_plan(const DeviceSource& source, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place) {
  const cuda::CurrentDevice current(device);
  const Layout layout(source, tiles, place.memory);
  return std::visit(
      [&](const auto* from) {
        Filler(layout, place.stream).fill(*from);
        classify(*from, shape_of(*from), tiles, layout, static_cast<cudaStream_t>(place.stream));
        return plan_in(layout, shape_of(*from), tiles);
      },
      source);
}

}  // namespace flashmask
