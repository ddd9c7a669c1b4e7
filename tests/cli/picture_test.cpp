// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <png.h>

#include <cstring>

#include "cli/pictures/cell_colour.h"
#include "cli/pictures/mask_picture.h"
#include "cli/pictures/mask_raster.h"
#include "cli/pictures/pixel_font.h"
#include "cli/pictures/png_canvas.h"
#include "cli/pictures/svg_canvas.h"
#include "cli/pictures/terminal_picture.h"
#include "flashmask/block_map.h"
#include "flashmask/builders.h"

namespace flashmask::cli {
namespace {

/// A PNG file read back by libpng.
struct Decoded {
  explicit Decoded(const std::string& file) {
    png_image image;
    std::memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image, file.data(), file.size()) == 0) return;
    image.format = PNG_FORMAT_RGB;
    pixels.resize(std::size_t{image.width} * image.height);
    if (png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr) == 0) return;
    width = image.width;
    height = image.height;
  }

  Rgb at(std::int64_t x, std::int64_t y) const { return pixels.at(static_cast<std::size_t>(y * width + x)); }
  std::int64_t count(Rgb colour) const { return std::count(pixels.begin(), pixels.end(), colour); }

  std::int64_t width = 0, height = 0;
  std::vector<Rgb> pixels;
};

MaskRaster raster_of(const Mask& mask, TileShape tile, std::int64_t most_cells) {
  const LoweredMask lowered = lower(mask);
  return rasterise(lowered, schedule(lowered, tile), {0, 0, mask.shape().rows, mask.shape().columns, most_cells});
}

/// Visible scores of a cell by asking for each.
float visible_fraction(const Mask& mask, std::int64_t first_row, std::int64_t first_column, std::int64_t cell) {
  std::int64_t visible = 0, scores = 0;
  for (std::int64_t row = first_row; row < std::min(first_row + cell, mask.shape().rows); ++row) {
    for (std::int64_t column = first_column; column < std::min(first_column + cell, mask.shape().columns); ++column) {
      visible += mask.visible(0, 0, row, column) ? 1 : 0;
      ++scores;
    }
  }
  return static_cast<float>(visible) / static_cast<float>(scores);
}

/// Every second block of 128, in a chequered pattern, and a block more: ragged at the end of 300 scores.
BlockMap chequered() { return {{1, 1, 300, 300}, 128, std::vector<std::uint8_t>{1, 0, 1, 0, 1, 1, 1, 0, 1}}; }

Mask in_bits(const Mask& mask) { return {lower(mask, MaskForm::bits), mask.description()}; }

/// Of both forms, with a block map beside intervals and inside bits.
std::vector<Mask> some_masks() {
  const std::vector<std::int64_t> documents = {30, 1, 44, 13};
  const auto third = [](auto, auto, std::int64_t row, std::int64_t column) { return (row * row + column) % 3 == 0; };
  return {masks::causal_document(documents, 101),
          masks::global_sliding_window(101, 7, 9, 20),
          masks::causal(70, 101),
          masks::block_diffusion(48, 10),
          in_bits(masks::causal_document(documents, 101)),
          in_bits(masks::causal(70, 201)),
          from_predicate({1, 1, 130, 201}, third),
          masks::causal(300, 300) & chequered(),
          from_block_map(chequered()),
          in_bits(masks::causal(300, 300)) & chequered()};
}

/// Calls body(cell row, cell column) for every cell.
template <class Body>
void for_each_cell(const MaskRaster& raster, const Body& body) {
  for (std::int64_t row = 0; row < raster.cell_rows(); ++row) {
    for (std::int64_t column = 0; column < raster.cell_columns(); ++column) body(row, column);
  }
}

void expect_fractions(const Mask& mask, std::int64_t most_cells) {
  const MaskRaster raster = raster_of(mask, {8, 8}, most_cells);
  EXPECT_LE(std::max(raster.cell_rows(), raster.cell_columns()), most_cells);
  for_each_cell(raster, [&](std::int64_t row, std::int64_t column) {
    EXPECT_FLOAT_EQ(raster.visible[raster.index(row, column)],
                    visible_fraction(mask, row * raster.cell, column * raster.cell, raster.cell));
  });
}

TEST(MaskRaster, CellsHoldTheVisibleFraction) {
  for (const Mask& mask : some_masks()) {
    for (const std::int64_t most_cells : {300, 60, 13, 2, 1}) expect_fractions(mask, most_cells);
  }
}

TEST(MaskRaster, CellsInATileHaveItsKind) {
  for (const Mask& mask : some_masks()) {
    const LoweredMask lowered = lower(mask);
    const MaskRaster raster = raster_of(mask, {16, 16}, 64);
    ASSERT_EQ(16 % raster.cell, 0);
    const std::int64_t side = 16 / raster.cell;
    for_each_cell(raster, [&](std::int64_t row, std::int64_t column) {
      EXPECT_EQ(raster.kinds[raster.index(row, column)], classify(lowered, 0, 0, {16, 16}, row / side, column / side));
    });
  }
}

TEST(MaskRaster, ShowsTheHeadAndThePartAskedFor) {
  const Mask mask = stack_heads(std::vector{in_bits(masks::causal(200, 200)), masks::sliding_window(200, 200, 5)});
  ASSERT_EQ(mask.lowered().form(), MaskForm::intervals);
  for (const Mask& one : {mask, in_bits(mask)}) {
    const MaskRaster raster = rasterise(one.lowered(), schedule(one.lowered(), {64, 64}), {0, 1, 100, 70, 100});
    ASSERT_EQ(raster.cell, 1);
    for_each_cell(raster, [&](std::int64_t row, std::int64_t column) {
      EXPECT_EQ(raster.visible[raster.index(row, column)], one.visible(0, 1, row, column) ? 1 : 0);
    });
  }
}

TEST(PngCanvas, DecodesToThePixelsDrawn) {
  PngCanvas canvas(7, 5);
  canvas.fill({0, 0, 7, 5}, {255, 255, 255});
  canvas.fill({2, 1, 3, 2}, {1, 2, 3});
  canvas.fill({6, 4, 100, 100}, {9, 9, 9});  // the part outside is cut
  canvas.fill({-5, -5, 6, 6}, {200, 100, 50});
  const Decoded image(canvas.encode());
  ASSERT_EQ(image.width, 7);
  ASSERT_EQ(image.height, 5);
  EXPECT_EQ(image.at(4, 2), (Rgb{1, 2, 3}));
  EXPECT_EQ(image.at(5, 2), (Rgb{255, 255, 255}));
  EXPECT_EQ(image.at(6, 4), (Rgb{9, 9, 9}));
  EXPECT_EQ(image.at(0, 0), (Rgb{200, 100, 50}));
  EXPECT_EQ(image.count({1, 2, 3}), 6);
}

TEST(PngCanvas, WritesTextBothWays) {
  const Rgb ink{0, 0, 0};
  for (const TextDirection direction : {TextDirection::right, TextDirection::down}) {
    PngCanvas canvas(40, 40);
    canvas.fill({0, 0, 40, 40}, {255, 255, 255});
    canvas.write(4, 4, "l|", ink, direction);
    const auto strokes = static_cast<std::int64_t>(glyph('l').size() + glyph('|').size());
    EXPECT_EQ(Decoded(canvas.encode()).count(ink), 4 * strokes);  // each is 2 × 2 pixels
  }
}

TEST(PixelFont, DrawsEveryCharacterDifferently) {
  const std::string characters = "abcdefghijklmnopqrstuvwxyz0123456789.,:;-_()[]%/=+&|'";
  for (std::size_t i = 0; i < characters.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto same = [](const GlyphPixel& a, const GlyphPixel& b) { return a.x == b.x && a.y == b.y; };
      const auto& one = glyph(characters[i]);
      const auto& other = glyph(characters[j]);
      EXPECT_FALSE(std::equal(one.begin(), one.end(), other.begin(), other.end(), same))
          << characters[i] << " and " << characters[j];
    }
  }
  EXPECT_TRUE(glyph(' ').empty());
  EXPECT_FALSE(glyph('~').empty());
}

TEST(MaskPicture, ShowsScoresInTheColoursOfTheirTiles) {
  // Causal 8 × 8 in tiles of 4: one full tile, one skipped, two partial ones with 10 visible scores each.
  const Decoded image(MaskPicture(masks::causal(8, 8), {4, 4}, 0, 0).png());
  ASSERT_GT(image.width, 0);
  const std::int64_t swatch = 324;  // 18 × 18
  const auto scores = [&](Rgb colour) { return static_cast<double>(image.count(colour) - swatch); };
  const double full = scores(kFullColour);
  EXPECT_GT(full, 16 * 24 * 24);
  EXPECT_NEAR(scores(kSkipColour) / full, 1, 0.03);
  EXPECT_NEAR(scores(kPartialVisibleColour) / full, 20.0 / 16, 0.03);
  EXPECT_NEAR(scores(kPartialMaskedColour) / full, 12.0 / 16, 0.03);
}

TEST(MaskPicture, EnlargesTheFirstScoresOfALargeMask) {
  const Decoded small(MaskPicture(masks::causal(1024, 1024), {}, 0, 0).png());
  const Decoded large(MaskPicture(masks::causal(16384, 16384), {}, 0, 0).png());
  EXPECT_LT(small.width, 1200);
  EXPECT_GT(large.width, 2000);
}

TEST(MaskPicture, DrawsTheSameIntoSvg) {
  const std::string svg = MaskPicture(masks::causal(8, 8), {4, 4}, 0, 0).svg();
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  for (const char* part : {"#1d4e89", "#c95810", "#fde4c8", "#f0f2f5", "causal", "1 full, 2 partial, 1 skipped"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

TEST(SvgCanvas, EscapesText) {
  SvgCanvas canvas(10, 10);
  canvas.write(0, 0, "a < b & c", {}, TextDirection::right);
  EXPECT_NE(canvas.encode().find("a &lt; b &amp; c"), std::string::npos);
}

TEST(TerminalPicture, PlainIsOneCharacterACell) {
  EXPECT_EQ(plain_picture(raster_of(masks::causal(4, 4), {2, 2}, 4)), "#...\n##..\n###.\n####\n");
  EXPECT_EQ(plain_picture(raster_of(masks::causal(8, 8), {4, 4}, 4)), "+...\n#+..\n##+.\n###+\n");
}

TEST(TerminalPicture, ColouredIsHalfACharacterACell) {
  const std::string picture = coloured_picture(raster_of(masks::full(3, 2), {2, 2}, 4));
  EXPECT_EQ(std::count(picture.begin(), picture.end(), '\n'), 2);
  // The blue of full tiles; the third row has no fourth below it, so that its background stays.
  EXPECT_EQ(picture,
            "\x1b[38;5;24m\x1b[48;5;24m▀\x1b[38;5;24m\x1b[48;5;24m▀\x1b[0m\n\x1b[38;5;24m▀\x1b[38;5;24m▀\x1b[0m\n");
}

}  // namespace
}  // namespace flashmask::cli
