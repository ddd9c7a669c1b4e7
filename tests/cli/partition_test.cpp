// SPDX-License-Identifier: Apache-2.0
#include "flashmask/partition.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "flashmask/builders.h"
#include "run_command.h"

namespace flashmask::cli {
namespace {

std::string file(const std::string& name) { return testing::TempDir() + name; }

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(PartitionCommand, PrintsTheDivisionsOfTheLibrary) {
  const auto told = command({"partition", "causal", "--tokens", "1024", "--ranks", "2", "--json"}).json();
  EXPECT_EQ(told["tokens"], 1024);
  ASSERT_EQ(told["divisions"].size(), 3U);
  const Mask mask = masks::causal(1024, 1024);
  for (const auto& division : told["divisions"]) {
    PartitionOptions options;
    options.division = division["division"] == "balanced"     ? Division::balanced
                       : division["division"] == "contiguous" ? Division::contiguous
                                                              : Division::zigzag;
    const Partition expected = partition(mask, 2, options);
    EXPECT_EQ(division["why"], expected.why());
    ASSERT_EQ(division["runs"].size(), expected.runs().size());
    for (std::size_t i = 0; i < expected.runs().size(); ++i) {
      const RankRun& run = expected.runs()[i];
      EXPECT_EQ(division["runs"][i], nlohmann::json({run.tokens.begin, run.tokens.end, run.rank}));
    }
    const std::vector<RankLoad> all = loads(expected, mask);
    const PredictedTime time = predict(all, mask.shape(), options);
    EXPECT_DOUBLE_EQ(division["attention_seconds"], static_cast<double>(time.attention) * 1e-9);
    EXPECT_DOUBLE_EQ(division["wire_seconds"], static_cast<double>(time.wire) * 1e-9);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(division["ranks"][rank]["tiles"], all[rank].tiles);
      EXPECT_EQ(division["ranks"][rank]["sent"], all[rank].sent);
    }
  }
}

TEST(PartitionCommand, CountsWorkPairsAndBytesOfAHalf) {
  // Of a causal mask of 2 x 4 tiles, the second half visits 26 of 36 tiles and 26 + 8 of 36 + 16 units of work; it
  // needs the first 512 columns, 2 x 512 x 8 x 128 numbers of 2 bytes.
  const auto told =
      command({"partition", "causal", "--tokens", "1024", "--ranks", "2", "--division", "contiguous", "--json"})
          .json()["divisions"][0];
  EXPECT_DOUBLE_EQ(told["work_max_over_mean"], 34 / 26.0);
  EXPECT_DOUBLE_EQ(told["pairs_max_over_mean"], (1024 * 1025 - 512 * 513) / (1024 * 1025 / 2.0));
  EXPECT_EQ(told["moved_columns"], 512);
  EXPECT_DOUBLE_EQ(told["moved_forward_bytes"], 2.0 * 512 * 8 * 128 * 2);
}

TEST(PartitionCommand, TellsWhatPassesBetweenNodes) {
  const auto told = command({"partition", "sliding_window", "--tokens", "4096", "--window", "128", "--ranks", "2x4",
                             "--division", "contiguous", "--node-bandwidth", "10", "--json"})
                        .json()["divisions"][0];
  EXPECT_EQ(told["moved_columns"], 128);
  EXPECT_EQ(told["between_nodes_columns"], 128);
  EXPECT_DOUBLE_EQ(told["slow_wire_seconds"], 128 * 8 * 128 * 16 / 10.0 * 1e-9);
  EXPECT_NE(command({"partition", "causal", "--tokens", "512", "--ranks", "2x2"}).out.find("MB between nodes"),
            std::string::npos);
}

TEST(PartitionCommand, DrawsTheRankOfEachRow) {
  const Outcome drawn =
      command({"partition", "causal", "--tokens", "64", "--tile", "16", "--ranks", "2", "--division", "zigzag"});
  const std::size_t first = drawn.out.find('\n');
  EXPECT_EQ(drawn.out.substr(0, first), "0" + std::string(63, '.'));
  EXPECT_EQ(drawn.out.substr(16 * 65, 64), std::string(17, '1') + std::string(47, '.'));
  EXPECT_EQ(drawn.out.substr(63 * 65, 64), std::string(64, '0'));
  EXPECT_NE(drawn.out.find("zigzag"), std::string::npos);
  EXPECT_EQ(command({"partition", "causal", "--tokens", "64", "--ranks", "2", "--no-picture"}).out.find("0..."),
            std::string::npos);
}

TEST(PartitionCommand, DrawsIntoFiles) {
  const std::string png = file("partition.png"), svg = file("partition.svg");
  EXPECT_EQ(command({"partition", "causal", "--tokens", "300", "--ranks", "3", "--png", png, "--svg", svg}).status, 0);
  EXPECT_EQ(contents(png).substr(1, 3), "PNG");
  // Three ranks have three colours, and the picture says how it was shared out.
  for (const char* part : {"<svg", "300 tokens over 3 ranks", "#1d4e89", "#c95810", "#227d51", ">rank 2<", ">masked<"})
    EXPECT_NE(contents(svg).find(part), std::string::npos) << part;
  EXPECT_EQ(contents(svg).find(">rank 3<"), std::string::npos);
}

TEST(PartitionCommand, SaysWhichRanksShareAColour) {
  const std::string svg = file("many_ranks.svg");
  EXPECT_EQ(command({"partition", "causal", "--tokens", "4000", "--ranks", "17", "--svg", svg}).status, 0);
  for (const char* part : {">ranks 0, 8, ...<", ">ranks 7, 15<", ">key columns, and who holds them<"})
    EXPECT_NE(contents(svg).find(part), std::string::npos) << part;
}

TEST(PartitionCommand, RefusesWhatItCannotShareOut) {
  expect_refused({"partition", "causal"}, "give --ranks");
  expect_refused({"partition", "--ranks", "2"}, "give one mask family");
  expect_refused({"partition", "causal", "--ranks", "0"}, "--ranks is 0");
  expect_refused({"partition", "causal", "--ranks", "2x2x2"}, "give a number, or nodes x ranks");
  expect_refused({"partition", "causal", "--ranks", "2", "--division", "fair"}, "balanced,contiguous,zigzag");
  expect_refused({"partition", "causal", "--tokens", "10", "--columns", "20", "--ranks", "2"},
                 "give masks with as many rows as columns");
  expect_refused({"partition", "causal", "--ranks", "2", "--png", "/nowhere/p.png"}, "/nowhere");
}

}  // namespace
}  // namespace flashmask::cli
