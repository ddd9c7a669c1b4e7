// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/common/kernel_entry.h"
#include "cuda/common/views.h"
#include "cuda/runtime/device.h"
#include "plan/plan_choice.h"

/// Gives an entry of the kernel table tiles of two shapes, of which the device takes one (TileChoice).
namespace flashmask::cuda {

/// When small tiles take less time. Larger ones multiply faster where rows are long.
struct WhenSmall {
  float area;     // they may cover at most this share of the scores that the larger ones cover,
  float per_row;  // and be this many more for each row tile
};

/// `side`: that of the maps; `row_tile`: the tile whose rows per_row counts. Problems whose scores are changed or
/// dropped take the larger tiles, and so do devices whose multiprocessors have less shared memory than `room`.
class TwoTiles {
 public:
  TwoTiles(Direction direction, MapSide side, TileShape large, TileShape small, TileShape row_tile,
           const WhenSmall& when, std::size_t room = 0)
      : direction_(direction),
        side_(side),
        when_{
            large,
            small,
            when.area * static_cast<float>(large.rows * large.columns) / static_cast<float>(small.rows * small.columns),
            when.per_row,
            row_tile,
            kMostChoiceBytes,
            side == MapSide::columns},
        room_(room) {}

  std::vector<MapRequest> maps() const {
    return {{.tile = when_.own, .side = side_, .counted = true},
            {.tile = when_.small, .side = side_, .counted = true, .most_bytes = kMostChoiceBytes}};
  }
  const SmallTiles& small_tiles() const { return when_; }

  const DeviceMap& large_map(const Plan& plan) const { return PlanAccess::device(plan).map(when_.own, side_); }
  const DeviceMap& small_map(const Plan& plan) const { return PlanAccess::device(plan).map(when_.small, side_); }

  /// Returns the size that a plan takes; without maps of small tiles there is no choice.
  TileSize size(const Plan& plan) const {
    const Problem& problem = plan.problem();
    const bool has_room = device_facts(problem.device).shared_bytes >= room_;
    if (!has_room || small_map(plan).visited == nullptr || !has_plain_scores(problem)) return TileSize::large;
    return PlanAccess::tiles(plan, direction_);
  }

  /// Returns what the launch of either size needs to know where the device chooses, and nothing where `size` does.
  TileChoice choice(const Plan& plan, TileSize size, bool small) const {
    if (size != TileSize::automatic) return {};
    return {large_map(plan).visited, small_map(plan).visited, when_.limit,
            when_.allowance(PlanAccess::device(plan).mask.shape), small};
  }

 private:
  Direction direction_;
  MapSide side_;
  SmallTiles when_;
  std::size_t room_;
};

}  // namespace flashmask::cuda
