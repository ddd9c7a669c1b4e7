// SPDX-License-Identifier: Apache-2.0
#include "flashmask/draw.h"

#include <algorithm>
#include <vector>

#include "base/checks.h"
#include "flashmask/error.h"

namespace flashmask {
namespace {

/// One line of tile kinds per row of blocks.
using Canvas = std::vector<std::vector<TileKind>>;

void check_options(const DrawOptions& options, const MaskShape& shape) {
  if (options.width < 1) refuse("draw: width is " + grouped(options.width) + "; give at least 1 character");
  if (options.batch < 0 || options.batch >= shape.batch || options.head < 0 || options.head >= shape.heads) {
    refuse("draw: batch " + grouped(options.batch) + ", head " + grouped(options.head) + " of a mask with batch " +
           grouped(shape.batch) + ", heads " + grouped(shape.heads) + "; both count from 0");
  }
}

std::int32_t block_size(std::int64_t scores, std::int64_t width) {
  return static_cast<std::int32_t>(std::max<std::int64_t>((scores + width - 1) / width, 1));
}

/// Takes the blocks of a picture as the tiles of a schedule, so that a picture costs no more than a schedule.
Canvas block_kinds(const Mask& mask, const DrawOptions& options, TileShape block) {
  const TileSchedule tiles = schedule(mask.lowered(), block);
  Canvas canvas(static_cast<std::size_t>(tiles.row_tiles()),
                std::vector<TileKind>(static_cast<std::size_t>(tiles.column_tiles()), TileKind::skip));
  for (std::size_t line = 0; line < canvas.size(); ++line) {
    for (const Run& run : tiles.row_runs(options.batch, options.head, static_cast<std::int64_t>(line))) {
      std::fill(canvas[line].begin() + run.begin, canvas[line].begin() + run.end, run.kind);
    }
  }
  return canvas;
}

char symbol(TileKind kind) {
  if (kind == TileKind::full) return '#';
  return kind == TileKind::partial ? '+' : '.';
}

/// ANSI: green, yellow, dim.
const char* colour_of(TileKind kind) {
  if (kind == TileKind::full) return "\x1b[32m";
  return kind == TileKind::partial ? "\x1b[33m" : "\x1b[2m";
}

constexpr const char* kPlain = "\x1b[0m";

std::string line_of(const std::vector<TileKind>& kinds, bool colour) {
  std::string line;
  for (auto begin = kinds.begin(); begin != kinds.end();) {
    const auto end = std::find_if(begin, kinds.end(), [&](TileKind kind) { return kind != *begin; });
    const std::string symbols(static_cast<std::size_t>(end - begin), symbol(*begin));
    line += colour ? colour_of(*begin) + symbols + kPlain : symbols;
    begin = end;
  }
  return line + '\n';
}

}  // namespace

std::string draw(const Mask& mask, const DrawOptions& options) {
  const MaskShape& shape = mask.shape();
  check_options(options, shape);
  const TileShape block{block_size(shape.rows, options.width), block_size(shape.columns, options.width)};
  std::string picture;
  for (const std::vector<TileKind>& kinds : block_kinds(mask, options, block)) {
    picture += line_of(kinds, options.colour);
  }
  return picture;
}

}  // namespace flashmask
