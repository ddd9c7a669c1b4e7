// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/plan/bit_cells.h"
#include "cuda/plan/device_places.h"
#include "cuda/plan/map_squares.h"
#include "cuda/plan/row_indices.cuh"
#include "cuda/plan/row_spans.h"
#include "cuda/plan/tile_map.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/block_map.h"
#include "plan/device_plan.h"

namespace flashmask {
namespace {

constexpr std::size_t kAlignment = 256;
/// Hands out the caller's memory piece by piece; without memory it only counts bytes.
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

/// Where the units of an axis go, and how kernels find them there.
struct PlacedUnits {
  Unit* memory = nullptr;
  DeviceUnits view;
};

/// A BitMask's arrays, to be copied from the host.
struct HostCells {
  std::int64_t* offsets = nullptr;
  Run* runs = nullptr;
  std::int64_t* first_cells = nullptr;
  std::uint64_t* words = nullptr;
};

std::size_t words_of(const MapRequest& map, const MaskShape& mask) {
  const cuda::TileGrid tiles(mask, map.tile);
  return map.side == MapSide::rows ? tiles.by_row_words() : tiles.by_column_words();
}

/// A request, and where its map goes; a map that is too large is not made.
struct PlannedMap {
  MapRequest request;
  std::uint32_t* words = nullptr;
  std::uint32_t* visited = nullptr;
  bool counts = false;  // whether it counts visited tiles, for all maps of its tile shape
  cuda::RowSpans spans{};
  bool made = true;  // even if there is no memory yet
  bool in_squares = false;
  std::uint32_t stored = 0;  // as in SquareGrid; this and the rest are for a map in squares
  std::uint32_t *numbers = nullptr, *notes = nullptr;

  bool is_counted() const { return made && request.counted; }
  cuda::SquareMap squares() const { return {request.side, numbers, words, notes, counts ? visited : nullptr, stored}; }
};

/// How the caller's memory is used; what a mask does not need is left out.
struct Layout {
  Intervals intervals{};
  std::uint8_t* blocks = nullptr;  // the block map, if it is copied from the host
  bool as_bits = false;
  cuda::BitStorage bits{};
  HostCells host_cells;
  std::int64_t *row_order = nullptr, *column_order = nullptr;
  PlacedUnits row_units, column_units;
  std::int32_t *used_rows = nullptr, *scratch = nullptr;  // where tokens are placed on the device
  std::vector<PlannedMap> maps;
  std::int32_t* zeros = nullptr;  // memory that starts at 0: counts of visited tiles, and row spans
  std::size_t zero_count = 0;
  std::size_t bytes;

  Layout(const DeviceSource& source, const std::vector<MapRequest>& requests, const MapLimits& limits, void* memory)
      : pieces_(memory), limits_(limits) {
    const MaskShape mask = std::visit([this](const auto* from) { return take_mask(*from); }, source);
    for (const MapRequest& request : requests) maps.push_back(take_map(request, mask));
    take_zeros(mask);
    bytes = pieces_.bytes();
  }

 private:
  PlannedMap take_map(const MapRequest& request, const MaskShape& mask) {
    PlannedMap map{request};
    const std::size_t words = words_of(request, mask);
    map.made = request.most_bytes == 0 || (words > 0 && words * sizeof(*map.words) <= request.most_bytes);
    if (!map.made) return map;
    const auto lists = static_cast<std::size_t>(std::max<std::int64_t>(mask.batch * mask.heads, 1));
    if (may_be_in_squares_ && words / lists * sizeof(*map.words) > limits_.flat_bytes) {
      take_squares(map, mask);
    } else {
      map.words = pieces_.take<std::uint32_t>(words);
    }
    return map;
  }

  void take_squares(PlannedMap& map, const MaskShape& mask) {
    const cuda::SquareGrid grid(mask, map.request.tile, map.request.side, limits_.squares_of_strip);
    map.in_squares = true;
    map.stored = grid.stored();
    map.words = pieces_.take<std::uint32_t>(grid.words());
    map.numbers = pieces_.take<std::uint32_t>(grid.numbers());
    map.notes = pieces_.take<std::uint32_t>(grid.note_words());
  }

  /// Takes all zeros together, so that one call of the driver clears them.
  void take_zeros(const MaskShape& mask) {
    const auto rows_of = [&](const PlannedMap& map) {
      return map.made && map.request.spans ? cuda::TileGrid(mask, map.request.tile).rows : 0;
    };
    for (PlannedMap& map : maps) {
      const int rows = rows_of(map);
      map.counts = map.is_counted() && &first_counted(map.request.tile) == &map;
      zero_count += (map.counts ? 1 : 0) + (rows == 0 ? 0 : std::size_t{2} * rows + 1);
    }
    zeros = pieces_.take<std::int32_t>(zero_count);
    if (zeros == nullptr) return;
    std::int32_t* next = zeros;
    for (PlannedMap& map : maps) {
      const int rows = rows_of(map);
      if (map.counts) map.visited = reinterpret_cast<std::uint32_t*>(next++);
      if (map.is_counted()) map.visited = first_counted(map.request.tile).visited;
      if (rows == 0) continue;
      map.spans = {next, next + rows, next + 2 * rows};
      next += 2 * rows + 1;
    }
  }

  const PlannedMap& first_counted(TileShape tile) const {
    return *std::ranges::find_if(maps,
                                 [&](const PlannedMap& map) { return map.is_counted() && map.request.tile == tile; });
  }

  MaskShape take_mask(const HostMask& host) {
    const LoweredMask& mask = host.lowered;
    if (!host.row_order.empty()) row_order = pieces_.take<std::int64_t>(host.row_order.size());
    if (!host.column_order.empty()) column_order = pieces_.take<std::int64_t>(host.column_order.size());
    const std::int64_t entries = mask.shape().batch;
    row_units = take_units(std::ssize(host.row_units.units), host.row_units.size, host.row_units.tokens, entries);
    column_units =
        take_units(std::ssize(host.column_units.units), host.column_units.size, host.column_units.tokens, entries);
    if (mask.form() == MaskForm::intervals) {
      take_intervals(mask.shape(), mask.blocks() != nullptr);
      if (mask.blocks() != nullptr) blocks = pieces_.take<std::uint8_t>(mask.blocks()->memory_bytes());
    } else {
      take_host_cells(mask.bits());
    }
    return mask.shape();
  }
  /// Takes `count` units, of all entries.
  PlacedUnits take_units(std::int64_t count, std::int64_t size, std::int64_t tokens, std::int64_t entries) {
    if (count == 0) return {};
    Unit* const memory = pieces_.take<Unit>(static_cast<std::size_t>(count));
    return {memory,
            {memory, entries == 1 ? 0 : static_cast<std::int32_t>(count / entries), static_cast<std::int32_t>(size),
             static_cast<std::int32_t>(tokens)}};
  }
  MaskShape take_mask(const DeviceRowIndices& rows) {
    take_intervals(rows.shape, rows.blocks.keep != nullptr);
    return rows.shape;
  }
  MaskShape take_mask(const PlacedRowIndices& placed) {
    const MaskShape &places = placed.shape, &tokens = placed.rows.shape;
    const std::int64_t entries = places.batch;
    row_units = take_units(entries * places.rows / placed.unit.rows, placed.unit.rows, tokens.rows, entries);
    column_units =
        take_units(entries * places.columns / placed.unit.columns, placed.unit.columns, tokens.columns, entries);
    if (placed.orders) {
      row_order = pieces_.take<std::int64_t>(static_cast<std::size_t>(entries * places.rows));
      column_order = pieces_.take<std::int64_t>(static_cast<std::size_t>(entries * places.columns));
      row_units.view = column_units.view = {};  // gathered tokens lie at their places
    }
    used_rows = pieces_.take<std::int32_t>(1);
    row_units.view.used = used_rows;
    scratch = pieces_.take<std::int32_t>(cuda::places_scratch(placed));
    take_intervals(places, false);
    return places;
  }
  template <class AllCells>
  MaskShape take_mask(const AllCells& mask) {
    take_cells(mask.shape, cuda::cell_count(mask.shape));
    return mask.shape;
  }

  /// With a block map, a map must be flat: squares without room count as partial, wrong for tiles in blocks not kept.
  void take_intervals(const MaskShape& mask, bool has_blocks) {
    may_be_in_squares_ = !has_blocks;
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
  MapLimits limits_;
  bool may_be_in_squares_ = false;
};

/// Turns the vectors of one column per thread (docs/masks.md) into two ranges in IntervalMask's normal form.
__global__ void lower_row_indices(DeviceRowIndices rows, Intervals out, std::int64_t columns) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= columns) return;
  const cuda::MaskedRows masked = cuda::masked_rows(rows, at);
  out.values[0][at] = masked.first.x;
  out.values[1][at] = masked.first.y;
  out.values[2][at] = masked.second.x;
  out.values[3][at] = masked.second.y;
}

/// Writes a mask to its place on the device.
class Filler {
 public:
  Filler(const Layout& layout, void* stream) : layout_(layout), stream_(static_cast<cudaStream_t>(stream)) {}

  void fill(const HostMask& host) const {
    copy(layout_.row_order, host.row_order.data(), host.row_order.size());
    copy(layout_.column_order, host.column_order.data(), host.column_order.size());
    copy(layout_.row_units.memory, host.row_units.units.data(), host.row_units.units.size());
    copy(layout_.column_units.memory, host.column_units.units.data(), host.column_units.units.size());
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

  void fill(const PlacedRowIndices& placed) const {
    const auto& values = layout_.intervals.values;
    cuda::place_row_indices(placed,
                            {layout_.row_units.memory,
                             layout_.column_units.memory,
                             layout_.row_order,
                             layout_.column_order,
                             {values[0], values[1], values[2], values[3]},
                             layout_.used_rows,
                             layout_.scratch},
                            stream_);
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

  /// Host memory may be freed once this returns: the driver has copied what is not on the device yet.
  template <class T>
  void copy(T* to, const T* from, std::size_t count) const {
    if (count == 0) return;
    cuda::check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, stream_),
                "plan: copying the mask");
  }

  const Layout& layout_;
  cudaStream_t stream_;
};

cuda::BlockView blocks_of(const HostMask& mask, const Layout& layout) {
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

cuda::BlockView blocks_of(const DeviceRowIndices& rows, const Layout&) {
  const cuda::TileGrid blocks(rows.shape, {DeviceBlockMap::kBlock, DeviceBlockMap::kBlock});
  return {.keep = rows.blocks.keep,
          .wide = true,
          .batch = static_cast<int>(rows.blocks.batch),
          .heads = static_cast<int>(rows.blocks.heads),
          .rows = blocks.rows,
          .columns = blocks.columns,
          .block = DeviceBlockMap::kBlock};
}

template <class WithoutBlocks>
cuda::BlockView blocks_of(const WithoutBlocks&, const Layout&) {
  return {};
}

DeviceMask device_mask(const MaskShape& shape, const Layout& layout) {
  const auto& values = layout.intervals.values;
  return {
      shape, {values[0], values[1], values[2], values[3]}, {layout.bits.words, layout.bits.index, layout.bits.stored}};
}

/// Returns all flat maps of a plan; those with the same tile shape are made together.
std::vector<cuda::TiledMaps> maps_by_tile(const Layout& layout) {
  std::vector<cuda::TiledMaps> all;
  for (const PlannedMap& map : layout.maps) {
    if (!map.made || map.in_squares) continue;
    auto same = std::ranges::find(all, map.request.tile, &cuda::TiledMaps::tile);
    if (same == all.end()) same = all.insert(all.end(), {map.request.tile, {}});
    (map.request.side == MapSide::rows ? same->maps.by_row : same->maps.by_column) = map.words;
    if (map.counts) same->maps.visited = map.visited;
  }
  return all;
}

void find_spans(const PlannedMap& map, const MaskShape& shape, cudaStream_t stream) {
  if (map.spans.from == nullptr) return;
  const cuda::TileGrid tiles(shape, map.request.tile);
  if (map.in_squares) {
    cuda::find_row_spans(map.squares(), tiles, map.spans, stream);
  } else {
    cuda::find_row_spans(map.words, tiles, map.spans, stream);
  }
}

template <class Source>
void classify(const Source& source, const MaskShape& shape, const Layout& layout, cudaStream_t stream) {
  const std::vector<cuda::TiledMaps> maps = maps_by_tile(layout);
  if (layout.zero_count != 0)
    cuda::check(cudaMemsetAsync(layout.zeros, 0, layout.zero_count * sizeof(*layout.zeros), stream),
                "plan: clearing the counts of tiles");
  if (layout.as_bits) {
    for (const cuda::TiledMaps& one : maps)
      cuda::make_tile_map(layout.bits.granules, shape, one.tile, one.maps, stream);
  } else {
    const auto& values = layout.intervals.values;
    cuda::make_tile_maps({values[0], values[1], values[2], values[3]}, blocks_of(source, layout), shape, maps, stream);
    for (const PlannedMap& map : layout.maps)
      if (map.in_squares)
        cuda::make_square_map({values[0], values[1], values[2], values[3]}, shape, map.request.tile, map.squares(),
                              stream);
  }
  for (const PlannedMap& map : layout.maps) find_spans(map, shape, stream);
}

/// Returns the plan as kernels read it, with pointers into the layout.
DevicePlan plan_in(const Layout& layout, const MaskShape& shape) {
  DevicePlan plan{};
  plan.mask = device_mask(shape, layout);
  plan.row_order = layout.row_order;
  plan.column_order = layout.column_order;
  plan.row_units = layout.row_units.view;
  plan.column_units = layout.column_units.view;
  for (const PlannedMap& map : layout.maps)
    plan.maps.push_back(
        {map.request.tile, map.request.side, map.words, map.numbers, map.visited, {map.spans.from, map.spans.until}});
  return plan;
}

const MaskShape& shape_of(const HostMask& mask) { return mask.lowered.shape(); }
template <class OnDevice>
const MaskShape& shape_of(const OnDevice& mask) {
  return mask.shape;
}

}  // namespace

std::size_t device_plan_bytes(const DeviceSource& source, const std::vector<MapRequest>& maps,
                              const MapLimits& limits) {
  return Layout(source, maps, limits, nullptr).bytes;
}

DevicePlan make_device_plan(const DeviceSource& source, const std::vector<MapRequest>& maps, Device device,
                            const PlanPlace& place, const MapLimits& limits) {
  const cuda::CurrentDevice current(device);
  const Layout layout(source, maps, limits, place.memory);
  return std::visit(
      [&](const auto* from) {
        if (!place.made) {
          Filler(layout, place.stream).fill(*from);
          classify(*from, shape_of(*from), layout, static_cast<cudaStream_t>(place.stream));
        }
        return plan_in(layout, shape_of(*from));
      },
      source);
}

}  // namespace flashmask
