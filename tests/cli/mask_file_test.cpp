// SPDX-License-Identifier: Apache-2.0
#include "cli/files/mask_file.h"

#include <gtest/gtest.h>
#include <png.h>

#include <filesystem>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/schedule.h"
#include "npy_bytes.h"

namespace flashmask::cli {
namespace {

namespace fs = std::filesystem;

/// A file of the running test: tests may run side by side.
std::string file_of(const std::string& name, const std::string& bytes) {
  std::string path = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "-" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

template <class Read>
std::string refusal(const std::string& path, Status status, const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind(path + ": ", 0), 0U) << error.what();
    return error.what();
  }
  return "";
}

void expect_npy_refused(const std::string& bytes, std::optional<std::int64_t> packed_columns, const std::string& part) {
  const std::string path = file_of("m.npy", bytes);
  const std::string message = refusal(path, Status::invalid_argument, [&] { read_mask_npy(path, packed_columns); });
  EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
}

Mask some_documents() { return masks::causal_document(std::vector<std::int64_t>{70, 1, 50, 79}, 210); }

/// Bit c % 8 of byte c / 8 for column c.
std::string packed(const Mask& mask) {
  const MaskShape& shape = mask.shape();
  std::string bytes(static_cast<std::size_t>(shape.rows * ((shape.columns + 7) / 8)), '\0');
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t column = 0; column < shape.columns; ++column) {
      char& byte = bytes[static_cast<std::size_t>(row * ((shape.columns + 7) / 8) + column / 8)];
      if (mask.visible(0, 0, row, column)) byte = static_cast<char>(byte | 1 << column % 8);
    }
  }
  return bytes;
}

TEST(MaskFile, ADenseMaskGivesTheTilesOfItsBuilder) {
  const Mask built = some_documents();
  const Mask read = read_mask_npy(file_of("m.npy", npy("|b1", rows_columns(built), dense_bytes(built))), {});
  EXPECT_EQ(expand(read), expand(built));
  EXPECT_EQ(read.lowered().form(), MaskForm::intervals);
  EXPECT_EQ(schedule(read.lowered(), {32, 64}), schedule(built.lowered(), {32, 64}));
}

TEST(MaskFile, PackedBitsGiveTheTilesOfTheBuilder) {
  const Mask built = some_documents();
  const Mask read = read_mask_npy(file_of("m.npy", npy("|u1", "(210, 27)", packed(built))), 210);
  EXPECT_EQ(expand(read), expand(built));
  EXPECT_EQ(schedule(read.lowered(), {32, 64}), schedule(built.lowered(), {32, 64}));
}

TEST(MaskFile, IsDescribedByItsName) {
  const std::string path = file_of("m.npy", npy("|b1", "(1, 1)", "\x01"));
  EXPECT_EQ(read_mask_npy(path, {}).description(), fs::path(path).filename().string());
}

TEST(MaskFile, EveryIntegerTypeSaysTheSame) {
  const std::vector<int> values = {1, 0, 0, 1, 1, 0};
  const std::string one = elements<std::int8_t>(values), two = elements<std::int16_t>(values);
  const std::string four = elements<std::int32_t>(values), eight = elements<std::int64_t>(values);
  const std::vector<std::pair<const char*, const std::string*>> files = {
      {"|b1", &one},  {"|i1", &one},  {"|u1", &one},   {"<i2", &two},  {"<u2", &two},
      {"<i4", &four}, {"<u4", &four}, {"<i8", &eight}, {"<u8", &eight}};
  for (const auto& [descr, data] : files) {
    const Mask mask = read_mask_npy(file_of("m.npy", npy(descr, "(2, 3)", *data)), {});
    EXPECT_EQ(expand(mask), std::vector<std::uint8_t>(values.begin(), values.end())) << descr;
  }
}

TEST(MaskFile, LeadingDimensionsAreHeadsThenBatch) {
  const std::string scores("\1\0\1\1\0\0", 6);
  const Mask heads = read_mask_npy(file_of("m.npy", npy("|b1", "(3, 1, 2)", scores)), {});
  EXPECT_EQ(heads.shape(), (MaskShape{1, 3, 1, 2}));
  EXPECT_FALSE(heads.visible(0, 0, 0, 1));
  EXPECT_TRUE(heads.visible(0, 1, 0, 1));
  const Mask batch = read_mask_npy(file_of("m.npy", npy("|b1", "(3, 2, 1, 1)", scores)), {});
  EXPECT_EQ(batch.shape(), (MaskShape{3, 2, 1, 1}));
  EXPECT_EQ(expand(batch), expand(heads));
}

TEST(MaskFile, RefusesScoresThatAreNeither0Nor1) {
  expect_npy_refused(npy("|u1", "(2, 2)", std::string("\0\1\2\1", 4)), {}, "row 1, column 0 is 2");
  expect_npy_refused(npy("|u1", "(2, 2)", std::string("\0\1\2\1", 4)), {}, "need --packed-columns");
  expect_npy_refused(npy("|b1", "(1, 2)", "\x01\xFF"), {}, "row 0, column 1");
  expect_npy_refused(npy("<i2", "(1, 2)", std::string("\1\0\0\1", 4)), {}, "column 1 is 256");
  expect_npy_refused(npy("<i8", "(1, 1)", std::string(8, '\xFF')), {}, "column 0 is -1");
}

TEST(MaskFile, RefusesPackedBitsOfAnotherSizeOrType) {
  expect_npy_refused(npy("|u1", "(1, 2)", "xx"), 17, "rows of 2 bytes; --packed-columns 17 takes 3");
  expect_npy_refused(npy("|u1", "(1, 2)", "xx"), 8, "--packed-columns 8 takes 1");
  expect_npy_refused(npy("|b1", "(1, 2)", "xx"), 16, "dtype '|b1'; packed bits are uint8");
  expect_npy_refused(npy("<u2", "(1, 2)", "xxxx"), 16, "packed bits are uint8");
}

TEST(MaskFile, RefusesWhatCannotBeRead) {
  const std::string missing = testing::TempDir() + "missing.npy", folder = testing::TempDir();
  const auto read = [](const std::string& path) { return [&path] { read_mask_npy(path, {}); }; };
  EXPECT_NE(refusal(missing, Status::io, read(missing)).find("cannot be read"), std::string::npos);
  EXPECT_NE(refusal(folder, Status::io, read(folder)).find("no plain file"), std::string::npos);
}

std::string read_map_refusal(const std::string& bytes, std::int64_t block, std::optional<std::int64_t> scores) {
  const std::string path = file_of("map.npy", bytes);
  return refusal(path, Status::invalid_argument, [&] { read_block_map(path, block, scores, scores); });
}

TEST(BlockMapFile, CoversWholeBlocksOrTheScoresThatAreSaid) {
  const std::string path = file_of("map.npy", npy("|b1", "(2, 2)", std::string("\1\0\1\1", 4)));
  EXPECT_EQ(read_block_map(path, 32, {}, {}).shape(), (MaskShape{1, 1, 64, 64}));
  const BlockMap ragged = read_block_map(path, 32, 33, 64);
  EXPECT_EQ(ragged.shape(), (MaskShape{1, 1, 33, 64}));
  EXPECT_FALSE(ragged.keeps(0, 0, 0, 1));
  EXPECT_TRUE(ragged.keeps(0, 0, 1, 1));
}

TEST(BlockMapFile, TakesWideIntegersAndHeads) {
  const std::string path = file_of("map.npy", npy("<i4", "(2, 1, 2)", elements<std::int32_t>({1, 0, 0, 1})));
  const BlockMap map = read_block_map(path, 16, {}, {});
  EXPECT_EQ(map.shape(), (MaskShape{1, 2, 16, 32}));
  EXPECT_TRUE(map.keeps(0, 1, 0, 1));
  EXPECT_FALSE(map.keeps(0, 1, 0, 0));
}

TEST(BlockMapFile, RefusesAnotherSizeOrValue) {
  const std::string four = npy("|b1", "(2, 2)", std::string("\1\0\1\1", 4));
  EXPECT_NE(read_map_refusal(four, 32, 65).find("2 blocks of rows; 65 rows in blocks of 32 take 3"), std::string::npos);
  EXPECT_NE(read_map_refusal(four, 24, {}).find("multiple of 16"), std::string::npos);
  EXPECT_NE(read_map_refusal(npy("|u1", "(1, 2)", "\x01\x02"), 16, {}).find("keep[1]"), std::string::npos);
  EXPECT_NE(read_map_refusal(npy("<i2", "(1, 1)", std::string("\0\1", 2)), 16, {}).find("keep[0]"), std::string::npos);
  EXPECT_NE(read_map_refusal(four, 2147483632, {}).find("too many rows"), std::string::npos);
}

/// A PNG of pixels in one of libpng's formats.
std::string png(std::int64_t width, std::int64_t height, std::uint32_t format,
                const std::vector<std::uint8_t>& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  png_alloc_size_t size = 0;
  EXPECT_NE(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr), 0);
  std::string file(size, '\0');
  EXPECT_NE(png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0, nullptr), 0);
  return file;
}

void expect_png_refused(const std::string& bytes, const std::string& part) {
  const std::string path = file_of("m.png", bytes);
  const std::string message = refusal(path, Status::invalid_argument, [&] { read_mask_png(path); });
  EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
}

TEST(MaskPng, BlackIsMaskedAndWhiteVisible) {
  const Mask built = some_documents();
  std::vector<std::uint8_t> pixels = expand(built);
  for (std::uint8_t& pixel : pixels) pixel = pixel == 0 ? 0 : 255;
  const Mask read = read_mask_png(file_of("m.png", png(210, 210, PNG_FORMAT_GRAY, pixels)));
  EXPECT_EQ(expand(read), expand(built));
  EXPECT_EQ(schedule(read.lowered(), {32, 64}), schedule(built.lowered(), {32, 64}));
}

TEST(MaskPng, TakesColourFilesWhoseColoursAreBlackAndWhite) {
  const std::vector<std::uint8_t> scores = {1, 0, 0, 1, 1, 0};
  std::vector<std::uint8_t> pixels;
  for (const std::uint8_t score : scores) {
    const auto level = static_cast<std::uint8_t>(score * 255);
    pixels.insert(pixels.end(), {level, level, level, 255});
  }
  const Mask read = read_mask_png(file_of("m.png", png(3, 2, PNG_FORMAT_RGBA, pixels)));
  EXPECT_EQ(read.shape(), (MaskShape{1, 1, 2, 3}));
  EXPECT_EQ(expand(read), scores);
}

TEST(MaskPng, RefusesEveryOtherColour) {
  expect_png_refused(png(3, 2, PNG_FORMAT_GRAY, {0, 255, 0, 255, 0, 128}), "row 1, column 2 is #808080");
  expect_png_refused(png(2, 1, PNG_FORMAT_RGB, {0, 0, 0, 255, 0, 0}), "row 0, column 1 is #ff0000");
  expect_png_refused(png(1, 1, PNG_FORMAT_RGBA, {255, 255, 255, 0}), "is transparent");
}

TEST(MaskPng, RefusesWhatIsNoPicture) {
  expect_png_refused("", "no PNG file");
  expect_png_refused("hello, world", "no PNG file");
}

TEST(MaskPng, RefusesEveryTruncationAndEveryDamagedByte) {
  const std::string whole = png(40, 40, PNG_FORMAT_GRAY, std::vector<std::uint8_t>(1600, 255));
  for (std::size_t size = 0; size < whole.size(); ++size) expect_png_refused(whole.substr(0, size), ": ");
  expect_png_refused(whole.substr(0, whole.size() - 1), "cut off");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    expect_png_refused(damaged, ": ");
  }
}

}  // namespace
}  // namespace flashmask::cli
