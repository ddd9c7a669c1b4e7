// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/tile.h"

namespace flashmask {

struct TileCounts {
  std::int64_t skip = 0;
  std::int64_t partial = 0;
  std::int64_t full = 0;

  std::int64_t active() const { return partial + full; }
  friend bool operator==(const TileCounts&, const TileCounts&) = default;
};

/// Which tiles a plan visits.
enum class Visit : std::uint8_t {
  active,  ///< full and partial tiles
  all,     ///< every tile, as if partial, as under a dense mask; outputs and gradients are bit-identical
};

/// The tiles a kernel walks: per row of tiles for the forward and, transposed, per column of tiles for the backward.
/// Shared by all heads that share the mask.
class FLASHMASK_API TileSchedule {
 public:
  TileSchedule(const MaskShape& mask, TileShape tile, RunLists rows, RunLists columns);

  const MaskShape& mask_shape() const { return mask_; }
  TileShape tile() const { return tile_; }
  std::int64_t row_tiles() const { return (mask_.rows + tile_.rows - 1) / tile_.rows; }
  std::int64_t column_tiles() const { return (mask_.columns + tile_.columns - 1) / tile_.columns; }

  std::span<const Run> row_runs(std::int64_t batch, std::int64_t head, std::int64_t row_tile) const {
    return rows_.list((batch * mask_.heads + head) * row_tiles() + row_tile);
  }
  std::span<const Run> column_runs(std::int64_t batch, std::int64_t head, std::int64_t column_tile) const {
    return columns_.list((batch * mask_.heads + head) * column_tiles() + column_tile);
  }

  /// Lists in (batch, head, tile) order.
  const RunLists& rows() const { return rows_; }
  const RunLists& columns() const { return columns_; }

  /// Counts the tiles of all mask heads and batch entries.
  TileCounts counts() const;
  std::size_t memory_bytes() const;

  friend bool operator==(const TileSchedule&, const TileSchedule&) = default;

 private:
  MaskShape mask_;
  TileShape tile_;
  RunLists rows_, columns_;
};

/// Finds a tile's kind by definition, score by score; the tile ends where the mask ends.
FLASHMASK_API TileKind classify(const LoweredMask& mask, std::int64_t batch, std::int64_t head, TileShape tile,
                                std::int64_t row_tile, std::int64_t column_tile);

/// Builds the schedule in time linear in the tokens. Heads and column ranges are shared out over the executor;
/// the result does not depend on how many workers it has.
FLASHMASK_API TileSchedule schedule(const LoweredMask& mask, TileShape tile, Visit visit = Visit::active,
                                    Executor& executor = default_executor());

}  // namespace flashmask
