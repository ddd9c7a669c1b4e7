#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "flashmask/device_plan.h"
#include "flashmask/reorder.h"
#include "flashmask/tile.h"

namespace flashmask {

/// What 32 neighbouring cells of a row of cells are.
struct alignas(16) CellEntry {
  std::uint32_t stored;  ///< bit i: the words of cell i are there
  std::uint32_t full;    ///< bit i: cell i is visible throughout; in neither: it is masked
  std::uint32_t first;   ///< the number of the first stored one; the others follow
  std::uint32_t unused;
};

/// A mask as bits: cells of 64 × 64 scores, read through cuda/bit_cells.cuh.
struct DeviceBits {
  static constexpr int kCellWords = 256;  ///< 64 × 64 bits by rows, then the same by columns
  /// Cells behind those stored, which all cells share that are masked throughout, visible throughout, and the same at
  /// the last columns: what lies past the end is masked.
  enum Shared : std::uint32_t { kSkipped, kFull, kFullAtEnd, kShared };

  const std::uint32_t* words;  ///< [stored + kShared, kCellWords]
  const CellEntry* index;  ///< [batch, heads, rows of cells, ⌈columns of cells / 32⌉]; nullptr: all cells are stored
  std::uint32_t stored;
};

/// The mask as kernels of a GPU read it, in the memory of the device: one of the two forms, the other is null.
struct DeviceMask {
  MaskShape shape;
  const std::int32_t* intervals[4];  ///< [batch, heads, columns]: first begin, first end, second begin, second end
  DeviceBits bits;
};

/// Which tiles a kernel visits, in the memory of the device: the maps of cuda/tile_map.h, null where it reads none.
struct DeviceTiles {
  TileShape tile;
  const std::uint32_t* by_row;
  const std::uint32_t* by_column;
  /// How many tiles are visited, on the device, where a kernel's choice depends on it: nobody waits to read it here.
  const std::uint32_t* visited;
};

/// Between which column tiles the row tiles of a map are visited, whatever the batch entry and head, in the memory of
/// the device.
struct DeviceRowSpans {
  const std::int32_t* from;   ///< where those begin that visit this row tile or a later one
  const std::int32_t* until;  ///< where those end that visit this row tile or an earlier one
};

/// What kernels of a GPU read.
struct DevicePlan {
  DeviceMask mask;
  DeviceTiles forward;   ///< by rows of tiles
  DeviceTiles finer;     ///< the same in the kernel's finer tiles; empty where it has none, or where they are too many
  DeviceTiles backward;  ///< by columns of tiles; empty where no kernel of the device has a backward for the problem
  DeviceTiles second;    ///< by rows of tiles, for a second pass of the backward; empty where it makes none
  DeviceTiles finer_backward;  ///< by both, in the finer tiles of the backward's kernel, by which the one of larger
                               ///< tiles leaves out parts of them; empty as `finer` may be
  DeviceRowSpans spans;        ///< of `backward`; null without one, without rows, and where there is a second pass
  /// [batch of the mask, tokens]: token i of the kernels is token order[i] of the caller; null where they agree.
  const std::int64_t* row_order;
  const std::int64_t* column_order;
};

/// Tiles of the kernels that a plan is for.
struct DeviceTileShapes {
  TileShape forward;
  std::optional<TileShape> finer;
  std::optional<TileShape> backward;
  std::optional<TileShape> second;
  std::optional<TileShape> finer_backward;
};

/// A mask on the host; `reordering` says what became of the caller's order of tokens, if anything.
struct HostMask {
  LoweredMask lowered;
  const Reordering* reordering = nullptr;
};

/// What a plan is made from.
using DeviceSource =
    std::variant<const HostMask*, const DeviceRowIndices*, const DeviceDenseMask*, const DevicePackedMask*>;

std::size_t device_plan_bytes(const DeviceSource& source, const DeviceTileShapes& tiles);

/// The place has enough memory.
DevicePlan make_device_plan(const DeviceSource& source, const DeviceTileShapes& tiles, Device device,
                            const PlanPlace& place);

}  // namespace flashmask
