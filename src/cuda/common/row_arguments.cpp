#include "cuda/common/row_arguments.h"

#include <algorithm>

#include "cuda/plan/tile_map.h"
#include "plan/plan_choice.h"

namespace flashmask::cuda {
namespace {

/// Of keys and values whose heads run side by side: in an L2 cache of 50 to 60 MB twice as much is already slower.
constexpr std::int64_t kSectionBytes = std::int64_t{16} << 20;

/// Whole groups of query heads, so that they share what they load.
int heads_in_section(const Problem& problem) {
  const std::int64_t bytes = std::max<std::int64_t>(problem.key_length * (problem.head_dim + problem.value_dim) * 2, 1);
  const std::int64_t kv_heads = std::max<std::int64_t>(kSectionBytes / bytes, 1);
  return static_cast<int>(
      std::min(kv_heads * (problem.query_heads / problem.kv_heads), problem.batch * problem.query_heads));
}

/// Without what the direction of the map decides.
TileMapView view_of(const std::uint32_t* tiles, const Plan& plan) {
  const MaskShape& mask = PlanAccess::device(plan).mask.shape;
  TileMapView view{};
  view.tiles = tiles;
  view.batch = static_cast<int>(mask.batch);
  view.heads = static_cast<int>(mask.heads);
  view.head_ratio = static_cast<int>(plan.problem().query_heads / mask.heads);
  view.visit_all = plan.visit() == Visit::all;
  return view;
}

}  // namespace

TileMapView map_by_rows(const DeviceTiles& tiles, const Plan& plan) {
  const MaskShape& mask = PlanAccess::device(plan).mask.shape;
  const TileCounts counts(mask, tiles.tile);
  TileMapView view = view_of(tiles.by_row, plan);
  view.row_tiles = counts.rows;
  view.column_tiles = counts.columns;
  view.words = counts.column_words();
  view.ragged = mask.columns % tiles.tile.columns != 0;
  return view;
}

TileMapView map_by_columns(const DeviceTiles& tiles, const Plan& plan) {
  const TileCounts counts(PlanAccess::device(plan).mask.shape, tiles.tile);
  TileMapView view = view_of(tiles.by_column, plan);
  view.row_tiles = counts.columns;
  view.column_tiles = counts.rows;
  view.words = counts.row_words();
  return view;
}

RowArguments row_arguments(const Plan& plan, const DeviceTiles& tiles, int* next_item) {
  const Problem& problem = plan.problem();
  RowArguments arguments{};
  arguments.batch = static_cast<int>(problem.batch);
  arguments.query_length = static_cast<int>(problem.query_length);
  arguments.key_length = static_cast<int>(problem.key_length);
  arguments.query_heads = static_cast<int>(problem.query_heads);
  arguments.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  arguments.scale_log2 = problem.softmax_scale() * 1.44269504088896F;
  arguments.section_heads = heads_in_section(problem);
  arguments.map = map_by_rows(tiles, plan);
  arguments.items = arguments.batch * arguments.query_heads * arguments.map.row_tiles;
  arguments.mask = mask_view(PlanAccess::device(plan).mask);
  arguments.next_item = next_item;
  return arguments;
}

}  // namespace flashmask::cuda
