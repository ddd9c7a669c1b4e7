// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/views.h"

#include <algorithm>

#include "cuda/plan/map_squares.h"
#include "cuda/plan/tile_map.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda {
namespace {

/// The most bytes that keys and values of heads running side by side may take of an L2 cache of 50 to 60 MB: twice as
/// much is slower.
constexpr std::int64_t kSectionBytes = std::int64_t{16} << 20;

}  // namespace

int heads_in_section(const Problem& problem, std::int64_t section_bytes) {
  const std::int64_t bytes = std::max<std::int64_t>(problem.key_length * (problem.head_dim + problem.value_dim) * 2, 1);
  const std::int64_t kv_heads = std::max<std::int64_t>(section_bytes / bytes, 1);
  return static_cast<int>(
      std::min(kv_heads * (problem.query_heads / problem.kv_heads), problem.batch * problem.query_heads));
}

int key_heads_in_section(const Problem& problem, std::int64_t section_bytes) {
  const std::int64_t row_bytes = problem.head_dim * (2 + 4) + problem.value_dim * 2;
  const std::int64_t bytes = problem.query_heads / problem.kv_heads * problem.query_length * row_bytes;
  const std::int64_t heads = section_bytes / std::max<std::int64_t>(bytes, 1);
  return static_cast<int>(
      std::clamp<std::int64_t>(heads, 1, std::max<std::int64_t>(problem.batch * problem.kv_heads, 1)));
}

TileMapView map_view(const DeviceMap& map, const Plan& plan) {
  const MaskShape& mask = PlanAccess::device(plan).mask.shape;
  const TileGrid counts(mask, map.tile);
  const bool by_rows = map.side == MapSide::rows;
  TileMapView view{};
  view.tiles = map.words;
  view.squares = map.squares;
  view.outer_tiles = by_rows ? counts.rows : counts.columns;
  view.inner_tiles = by_rows ? counts.columns : counts.rows;
  view.words = by_rows ? counts.column_words() : counts.row_words();
  view.lines = view.outer_tiles;
  view.batch = static_cast<int>(mask.batch);
  view.heads = static_cast<int>(mask.heads);
  view.head_ratio = static_cast<int>(plan.problem().query_heads / mask.heads);
  view.ragged = by_rows && mask.columns % map.tile.columns != 0;
  view.visit_all = plan.visit() == Visit::all;
  if (map.squares == nullptr) return view;
  const int strips = by_rows ? counts.row_words() : counts.column_words();
  view.lines = static_cast<int>(MapSquares::kTiles) * strips;
  view.occupied_shift = occupied_shift(view.words);
  if (!view.visit_all) view.occupied = map.squares + std::size_t{1} * counts.lists * strips * view.words;
  return view;
}

DeviceUnits query_units(const Plan& plan) {
  const DeviceUnits& made = PlanAccess::device(plan).row_units;
  return made.units != nullptr ? made : DeviceUnits{.tokens = static_cast<std::int32_t>(plan.problem().query_length)};
}

DeviceUnits key_units(const Plan& plan) {
  const DeviceUnits& made = PlanAccess::device(plan).column_units;
  return made.units != nullptr ? made : DeviceUnits{.tokens = static_cast<std::int32_t>(plan.problem().key_length)};
}

RowArguments row_arguments(const Plan& plan, const DeviceMap& map, const ScoreArguments& score, int* next_item) {
  const Problem& problem = plan.problem();
  RowArguments arguments{};
  arguments.batch = static_cast<int>(problem.batch);
  arguments.query_length = static_cast<int>(problem.query_length);
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  arguments.score = score;
  arguments.section_heads = heads_in_section(problem, kSectionBytes);
  arguments.map = map_view(map, plan);
  arguments.items = arguments.batch * arguments.query_heads * arguments.map.outer_tiles;
  arguments.mask = mask_view(PlanAccess::device(plan).mask);
  arguments.next_item = next_item;
  arguments.query_units = query_units(plan);
  arguments.key_units = key_units(plan);
  return arguments;
}

}  // namespace flashmask::cuda
