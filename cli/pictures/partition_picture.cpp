// SPDX-License-Identifier: Apache-2.0
#include "cli/pictures/partition_picture.h"

#include <algorithm>
#include <array>

#include "cli/base/quantities.h"
#include "cli/pictures/cell_colour.h"
#include "cli/pictures/png_canvas.h"
#include "cli/pictures/svg_canvas.h"
#include "cli/pictures/terminal_picture.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kSide = 1024;   ///< pixels, the target size
constexpr std::int64_t kHolders = 14;  ///< thickness of the bars that say who holds what
/// Corner of the scores: room for a line of text on the left, and for four on top.
constexpr std::int64_t kLeft = kMargin + kLine + kHolders;
constexpr std::int64_t kTop = kMargin + 4 * kLine + kHolders;

/// Eight colours that people tell apart; further ranks start over.
constexpr std::array<Rgb, 8> kRankColours{{{29, 78, 137},
                                           {201, 88, 16},
                                           {34, 125, 81},
                                           {146, 43, 102},
                                           {196, 160, 0},
                                           {91, 108, 196},
                                           {150, 40, 27},
                                           {84, 153, 165}}};
constexpr std::string_view kRankLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

Rgb colour_of(std::int32_t rank) { return kRankColours[static_cast<std::size_t>(rank) % kRankColours.size()]; }
char letter_of(std::int32_t rank) { return kRankLetters[static_cast<std::size_t>(rank) % kRankLetters.size()]; }

/// The legend; one colour may stand for several ranks.
std::vector<LegendEntry> legend_of(std::int32_t ranks) {
  constexpr auto colours = static_cast<std::int32_t>(kRankColours.size());
  std::vector<LegendEntry> legend;
  for (std::int32_t rank = 0; rank < std::min(ranks, colours); ++rank) {
    std::string text = "rank " + std::to_string(rank);
    if (rank + colours < ranks) text = "ranks " + std::to_string(rank) + ", " + std::to_string(rank + colours);
    if (rank + 2 * colours < ranks) text += ", ...";
    legend.push_back({colour_of(rank), text});
  }
  legend.push_back({kSkipColour, "masked"});
  return legend;
}

/// [cell rows]: the rank that holds the token in the middle of each cell.
std::vector<std::int32_t> holders(const Partition& partition, const MaskRaster& raster) {
  std::vector<std::int32_t> ranks;
  auto run = partition.runs().begin();
  for (std::int64_t cell = 0; cell < raster.cell_rows(); ++cell) {
    const std::int64_t middle = std::min(cell * raster.cell + raster.cell / 2, raster.rows - 1);
    while (run->tokens.end <= middle) ++run;
    ranks.push_back(run->rank);
  }
  return ranks;
}

MaskRaster raster_of(const Mask& mask, std::int32_t tile, std::int64_t most_cells) {
  const MaskShape& shape = mask.shape();
  if (shape.rows == 0 || shape.columns == 0)
    throw Error(Status::invalid_argument, "a mask without rows or columns has no picture; give --tokens of at least 1");
  return rasterise(mask.lowered(), schedule(mask.lowered(), {tile, tile}),
                   {0, 0, shape.rows, shape.columns, most_cells});
}

}  // namespace

PartitionPicture::PartitionPicture(const Mask& mask, const Partition& partition, std::int64_t most_cells)
    : title_(mask.description()),
      summary_(with_commas(partition.tokens()) + " tokens over " + with_commas(partition.ranks()) + " ranks in " +
               with_commas(std::ssize(partition.runs())) + " runs"),
      why_(partition.why()),
      legend_(legend_of(partition.ranks())),
      raster_(raster_of(mask, partition.tile(), most_cells)),
      ranks_(holders(partition, raster_)),
      pixels_(std::max<std::int64_t>(1, kSide / raster_.cell_rows())) {}

Rgb PartitionPicture::colour(std::int64_t row, std::int64_t column) const {
  const float visible = raster_.visible[raster_.index(row, column)];
  // Even a cell with few visible scores stays distinct.
  return visible == 0 ? kSkipColour
                      : mix(kSkipColour, colour_of(ranks_[static_cast<std::size_t>(row)]), 0.35F + 0.65F * visible);
}

std::int64_t PartitionPicture::width() const {
  constexpr std::int64_t kRoomForText = 480;
  return kLeft + std::max(side(), kRoomForText) + kMargin;
}

std::int64_t PartitionPicture::height() const {
  return kTop + side() + kMargin + legend_lines(legend_, width() - 2 * kMargin) * kLine + kMargin / 2;
}

/// Draws the rank of the rows on the left, and of the columns on top.
void PartitionPicture::draw_holders(Canvas& canvas) const {
  for (std::int64_t i = 0; i < std::ssize(ranks_); ++i) {
    const Rgb colour = colour_of(ranks_[static_cast<std::size_t>(i)]);
    canvas.fill({kLeft - kHolders, kTop + i * pixels_, kHolders - 4, pixels_}, colour);
    canvas.fill({kLeft + i * pixels_, kTop - kHolders, pixels_, kHolders - 4}, colour);
  }
}

void PartitionPicture::draw(Canvas& canvas) const {
  canvas.fill({0, 0, width(), height()}, kPaper);
  const std::int64_t room = width() - 2 * kMargin;
  canvas.write(kMargin, kMargin, fitted(title_, room), kInk);
  canvas.write(kMargin, kMargin + kLine, fitted(summary_, room), kFaintInk);
  canvas.write(kMargin, kMargin + 2 * kLine, fitted(why_, room), kFaintInk);
  canvas.write(kLeft, kTop - kHolders - kLine + 4, "key columns, and who holds them", kFaintInk);
  canvas.write(kMargin, kTop, fitted("query rows, and who holds them", side()), kFaintInk, TextDirection::down);
  const CellGrid cells{{kLeft, kTop}, raster_.cell_rows(), raster_.cell_columns(), pixels_};
  draw_cells(canvas, cells, kSkipColour, [this](std::int64_t row, std::int64_t column) { return colour(row, column); });
  draw_holders(canvas);
  draw_legend(canvas, legend_, {kMargin, kTop + side() + kMargin}, room);
}

std::string PartitionPicture::png() const {
  PngCanvas canvas(width(), height());
  draw(canvas);
  return canvas.encode();
}

std::string PartitionPicture::svg() const {
  SvgCanvas canvas(width(), height());
  draw(canvas);
  return canvas.encode();
}

std::string PartitionPicture::plain() const {
  std::string picture;
  for (std::int64_t row = 0; row < raster_.cell_rows(); ++row) {
    for (std::int64_t column = 0; column < raster_.cell_columns(); ++column)
      picture +=
          raster_.visible[raster_.index(row, column)] == 0 ? '.' : letter_of(ranks_[static_cast<std::size_t>(row)]);
    picture += '\n';
  }
  return picture;
}

std::string PartitionPicture::coloured() const {
  return coloured_picture(raster_, [this](std::int64_t row, std::int64_t column) { return colour(row, column); });
}

}  // namespace flashmask::cli
