#include "flashmask/draw.h"

#include <algorithm>
#include <vector>

#include "flashmask/error.h"
#include "mask/check.h"
#include "mask/mask_source.h"
#include "schedule/tile_counter.h"
#include "schedule/tile_shape.h"

namespace flashmask {
namespace {

/// One line of kinds a row of blocks.
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

void paint(const std::vector<Run>& runs, std::size_t column, Canvas& canvas) {
  for (const Run& run : runs) {
    for (std::int32_t line = run.begin; line < run.end; ++line) {
      canvas[static_cast<std::size_t>(line)][column] = run.kind;
    }
  }
}

void count_ranges(const std::vector<Interval>& ranges, TileCounter& counter) {
  for (const Interval& range : ranges) {
    counter.add_begins({&range.begin, 1});
    counter.add_ends({&range.end, 1});
  }
}

/// Counts through the masked ranges, so that a picture costs columns, not scores, whatever form the mask lowers to.
Canvas block_kinds(const Mask& mask, const DrawOptions& options, TileShape block) {
  const MaskShape& shape = mask.shape();
  Canvas canvas(static_cast<std::size_t>(row_tiles(shape, block)),
                std::vector<TileKind>(static_cast<std::size_t>(column_tiles(shape, block)), TileKind::skip));
  TileCounter counter(shape.rows, block.rows);
  std::vector<Interval> ranges;
  for (std::int64_t first = 0; first < shape.columns; first += block.columns) {
    const std::int64_t end = std::min(first + block.columns, shape.columns);
    for (std::int64_t column = first; column < end; ++column) {
      mask.source().masked_rows(options.batch, options.head, column, ranges);
      count_ranges(ranges, counter);
    }
    std::vector<Run> runs;
    counter.drain(static_cast<std::int32_t>(end - first), runs);
    paint(runs, static_cast<std::size_t>(first / block.columns), canvas);
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
