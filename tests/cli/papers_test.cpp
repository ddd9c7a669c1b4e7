// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/commands/command.h"
#include "cli/papers/papers_masks.h"
#include "cli/papers/papers_report.h"
#include "cli/pictures/png_canvas.h"
#include "cli/pictures/svg_canvas.h"
#include "flashmask/block_map.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kTokens = 1024;

/// The mask of a table at one length.
PapersCase case_of(const std::string& table, const std::string& mask, std::int64_t tokens,
                   const std::string& size = "") {
  for (PapersCase& one : papers_cases({table}, 16384)) {
    if (one.mask == mask && one.tokens == tokens && one.size.starts_with(size)) return one;
  }
  throw std::runtime_error("no such case");
}

/// Dense booleans [tokens, tokens].
struct Seen {
  explicit Seen(const Mask& mask) : tokens(mask.shape().rows), visible(expand(mask)) {}

  bool at(std::int64_t i, std::int64_t j) const { return visible[static_cast<std::size_t>(i * tokens + j)] != 0; }
  std::int64_t in_row(std::int64_t i) const {
    return std::count(visible.begin() + i * tokens, visible.begin() + (i + 1) * tokens, std::uint8_t{1});
  }
  std::int64_t total() const { return std::count(visible.begin(), visible.end(), std::uint8_t{1}); }
  bool symmetric() const {
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        if (at(i, j) != at(j, i)) return false;
      }
    }
    return true;
  }

  std::int64_t tokens;
  std::vector<std::uint8_t> visible;
};

template <class Sees>
void expect_sees(const Seen& seen, const Sees& sees) {
  for (std::int64_t i = 0; i < seen.tokens; ++i) {
    for (std::int64_t j = 0; j < seen.tokens; ++j) ASSERT_EQ(seen.at(i, j), sees(i, j)) << i << " " << j;
  }
}

TEST(PapersCases, TakeEveryLength) {
  std::map<std::string, std::vector<std::int64_t>> lengths;
  for (const PapersCase& one : papers_cases({"alpaca", "longformer", "reordering"}, 16384)) {
    lengths[one.mask].push_back(one.tokens);
  }
  EXPECT_EQ(lengths.size(), 8U);
  for (const auto& [mask, tokens] : lengths) {
    EXPECT_EQ(tokens, (std::vector<std::int64_t>{1024, 2048, 4096, 8192, 16384})) << mask;
  }
}

TEST(PapersCases, LeaveOutLongerMasks) {
  std::set<std::int64_t> lengths;
  for (const PapersCase& one : papers_cases(kPapersTables, 2048)) lengths.insert(one.tokens);
  EXPECT_EQ(lengths, (std::set<std::int64_t>{128, 512, 1024, 2048}));
}

/// Whether each of some pairs of rows and columns is seen.
std::vector<bool> seen_at(const Seen& seen, const std::vector<VisiblePair>& pairs) {
  std::vector<bool> all;
  all.reserve(pairs.size());
  for (const VisiblePair& pair : pairs) all.push_back(seen.at(pair.row, pair.column));
  return all;
}

TEST(PapersCases, PackAlpacaDocumentsInFileOrder) {
  // The first two of 13 documents, of 998 tokens in all, are 9 + 43 and 9 + 14 tokens long.
  const std::vector<VisiblePair> ends = {{51, 0}, {74, 52}, {997, 997}, {52, 51}, {51, 52}, {998, 998}};
  const std::vector<bool> seen_ends = {true, true, true, false, false, false};
  const std::vector<VisiblePair> inputs = {{0, 8}, {52, 60}, {0, 9}, {52, 61}, {20, 21}};
  const Seen causal(case_of("alpaca", "causal", kTokens).build());
  EXPECT_EQ(seen_at(causal, ends), seen_ends);
  EXPECT_EQ(seen_at(causal, inputs), std::vector<bool>(5, false));
  const Seen bidirectional(case_of("alpaca", "bidirectional inputs", kTokens).build());
  EXPECT_EQ(seen_at(bidirectional, ends), seen_ends);
  EXPECT_EQ(seen_at(bidirectional, inputs), (std::vector<bool>{true, true, false, false, false}));
}

TEST(PapersCases, DrawTreesAsPublished) {
  constexpr std::int64_t kNodes = 780, kChildren = 5;
  const auto parent = [](std::int64_t k) { return k / kChildren - 1; };  // −1: the root, which is left out
  const Seen two(case_of("medusa", "self and parent", kTokens, "K = 4, s = 5").build());
  expect_sees(two,
              [&](std::int64_t i, std::int64_t j) { return i < kNodes && (i == j || (j >= 0 && j == parent(i))); });
  const Seen all(case_of("medusa", "ancestors", kTokens, "K = 4, s = 5").build());
  expect_sees(all, [&](std::int64_t i, std::int64_t j) {
    if (i >= kNodes) return false;
    while (i > j) i = parent(i);
    return i == j;
  });
}

TEST(PapersCases, PadTreesToPowersOfTwo) {
  std::map<std::string, std::int64_t> tokens;
  for (const PapersCase& one : papers_cases({"medusa"}, 16384)) tokens[one.size] = one.tokens;
  EXPECT_EQ(tokens, (std::map<std::string, std::int64_t>{{"K = 4, s = 3: 120", 128},
                                                         {"K = 5, s = 3: 363", 512},
                                                         {"K = 6, s = 3: 1092", 2048},
                                                         {"K = 7, s = 3: 3279", 4096},
                                                         {"K = 8, s = 3: 9840", 16384},
                                                         {"K = 4, s = 4: 340", 512},
                                                         {"K = 4, s = 5: 780", 1024},
                                                         {"K = 4, s = 6: 1554", 2048},
                                                         {"K = 4, s = 7: 2800", 4096},
                                                         {"K = 4, s = 8: 4680", 8192},
                                                         {"K = 4, s = 9: 7380", 8192},
                                                         {"K = 4, s = 10: 11110", 16384}}));
}

TEST(PapersCases, DrawLongformerAsPublished) {
  expect_sees(Seen(case_of("longformer", "windowed", kTokens).build()),
              [](std::int64_t i, std::int64_t j) { return std::abs(i - j) <= 4; });
  expect_sees(Seen(case_of("longformer", "dilated", kTokens).build()),
              [](std::int64_t i, std::int64_t j) { return std::abs(i - j) <= 8 && (i - j) % 2 == 0; });
  const Seen global(case_of("longformer", "global", kTokens).build());
  std::vector<std::int64_t> globals;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    if (global.in_row(i) == kTokens) globals.push_back(i);
  }
  EXPECT_EQ(globals.size(), 2U + 8U);  // log₂ 1,024 − 2
  EXPECT_EQ(globals[0], 0);
  EXPECT_EQ(globals[1], 1);
  const auto is_global = [&](std::int64_t i) { return std::find(globals.begin(), globals.end(), i) != globals.end(); };
  expect_sees(global,
              [&](std::int64_t i, std::int64_t j) { return std::abs(i - j) <= 4 || is_global(i) || is_global(j); });
}

/// How many rows see so many columns.
std::map<std::int64_t, std::int64_t> rows_by_columns(const Seen& seen) {
  std::map<std::int64_t, std::int64_t> rows;
  for (std::int64_t i = 0; i < seen.tokens; ++i) ++rows[seen.in_row(i)];
  return rows;
}

TEST(PapersMasks, ScrambleABandWithoutLosingAnEdge) {
  const Seen seen(scrambled_band(kTokens, 16));
  EXPECT_TRUE(seen.symmetric());
  std::map<std::int64_t, std::int64_t> expected = {{33, kTokens - 32}};
  for (std::int64_t k = 17; k < 33; ++k) expected[k] = 2;  // at either end
  EXPECT_EQ(rows_by_columns(seen), expected);
  std::int64_t beside = 0;  // few neighbours still are
  for (std::int64_t i = 1; i < kTokens; ++i) beside += seen.at(i, i - 1) ? 1 : 0;
  EXPECT_LT(beside, kTokens / 10);
}

void expect_grid(std::int64_t height, std::int64_t width) {
  const Seen seen(scrambled_grid(height * width));
  EXPECT_TRUE(seen.symmetric());
  const std::map<std::int64_t, std::int64_t> expected = {
      {3, 4}, {4, 2 * (height - 2) + 2 * (width - 2)}, {5, (height - 2) * (width - 2)}};
  EXPECT_EQ(rows_by_columns(seen), expected);
}

TEST(PapersMasks, ScrambleAGridWithoutLosingAnEdge) {
  expect_grid(32, 32);
  expect_grid(32, 64);
}

TEST(PapersMasks, DrawSymmetricRandomMasksAtTheirProbability) {
  constexpr std::int64_t kMany = 4096;
  const Seen seen(symmetric_random(kMany));
  EXPECT_TRUE(seen.symmetric());
  std::array<double, 28> at_distance{};  // the last one: 27 and more
  for (std::int64_t i = 0; i < kMany; ++i) {
    for (std::int64_t j = i; j < kMany; ++j) {
      at_distance[static_cast<std::size_t>(std::min<std::int64_t>(j - i, 27))] += seen.at(i, j) ? 1 : 0;
    }
  }
  EXPECT_EQ(at_distance[0], kMany);
  for (std::size_t d = 1; d < at_distance.size(); ++d) {
    const double expected = d < 27 ? 0.5 * std::exp(-0.3 * static_cast<double>(d)) * (kMany - static_cast<double>(d))
                                   : 0.0002 * (kMany - 27.0) * (kMany - 26.0) / 2;
    EXPECT_NEAR(at_distance[d], expected, 5 * std::sqrt(expected)) << d;
  }
}

TEST(PapersCases, KeepTheShareOfBlocksThatTheyName) {
  std::vector<double> named, kept;
  for (const PapersCase& one : papers_cases({"block-sparse"}, 16384)) {
    const Mask mask = one.build();
    const BlockMap* blocks = mask.lowered().blocks();
    ASSERT_NE(blocks, nullptr);
    EXPECT_EQ(blocks->block() % 128, 0);
    named.push_back(one.kept_blocks);
    kept.push_back(blocks->density());
  }
  EXPECT_EQ(kept, named);
  EXPECT_EQ(named, (std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625,  //
                                        0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625}));
}

PapersResult some_result() {
  PapersResult result;
  result.asked = {.table = "longformer", .mask = "windowed", .tokens = 2048, .published = {.plain = 5.18}};
  result.tiles = {.skip = 900, .partial = 90, .full = 10};
  result.unmasked = {1.0, 3.0};
  result.every_tile = {2.0, 3.0};
  result.ours = {0.01, 0.03};
  return result;
}

/// Cells of a line of text.
std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string line_of(const std::string& text, const std::string& begin) {
  const std::size_t at = text.find("\n" + begin);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(PapersReport, SaysHowMuchFasterEachMaskIs) {
  PapersResult result = some_result();
  result.reordered = ReorderedResult{.prepare_seconds = 0.5, .active_tiles = 50, .seconds = {0.004, 0.004}};
  const std::string text = papers_table({result});
  EXPECT_EQ(words(line_of(text, "windowed")),
            words("windowed 2,048 0 % intervals 100 of 1,000 0 µs 4.00 s 5.00 s 40.0 ms 100 5.18"));
  EXPECT_EQ(words(line_of(text, "  reordered")), words("reordered 50 of 1,000 500 ms 8.00 ms 500"));
}

TEST(PapersReport, NamesTheHeadsOfTheDevice) {
  PapersResult result = some_result();
  EXPECT_NE(papers_table({result}).find(", 4 heads of 64\n"), std::string::npos);
  result.place.device = {DeviceType::cuda, 0};
  EXPECT_NE(papers_table({result}).find(", 4 x 32 heads of 64\n"), std::string::npos);
}

TEST(PapersReport, HoldsBlockMapsAgainstTheirShare) {
  PapersResult result = some_result();
  result.asked = {.table = "block-sparse", .mask = "random", .size = "1/4", .tokens = 2048, .kept_blocks = 0.25};
  result.ours = {0.3, 0.9};
  result.copies_seconds = 0.025;
  const std::vector<std::string> cells = words(line_of(papers_table({result}), "random"));
  ASSERT_GE(cells.size(), 2U);
  EXPECT_EQ(cells[cells.size() - 2], "1.00");  // 0.3 of 1.1 · ¼ · 1 + 0.025
  EXPECT_EQ(cells.back(), "1.06");             // 0.9 of 1.1 · ¼ · 3 + 0.025
}

TEST(PapersReport, DrawsALineAMaskAndOneReordered) {
  PapersResult longer = some_result();
  longer.asked.tokens = 4096;
  longer.reordered = ReorderedResult{.seconds = {1, 1}};
  PapersResult apart = some_result();
  apart.asked.in_plot = false;
  const std::vector<SpeedupLine> lines = speedup_lines({some_result(), longer, apart});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].name, "longformer windowed");
  ASSERT_EQ(lines[0].samples.size(), 2U);
  EXPECT_EQ(lines[0].samples[1].tokens, 4096);
  EXPECT_DOUBLE_EQ(lines[0].samples[1].speedup, 100);
  EXPECT_TRUE(lines[1].reordered);
  EXPECT_DOUBLE_EQ(lines[1].samples[0].speedup, 2);
}

std::int64_t count(const std::string& text, const std::string& part) {
  std::int64_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(SpeedupChart, JoinsTheSamplesOfALineAndNamesIt) {
  const std::vector<SpeedupLine> lines = {{"slow & steady", false, {{1024, 1.5}, {2048, 2}, {4096, 3}}},
                                          {"fast", true, {{1024, 10}, {4096, 100}}}};
  const SpeedupChart chart("a title", lines);
  const std::string svg = chart.svg();
  EXPECT_EQ(count(svg, "<line"), 3);
  for (const char* text : {">a title<", ">slow &amp; steady<", ">fast, reordered<", ">1,024<", ">4,096<", ">50<"}) {
    EXPECT_EQ(count(svg, text), 1) << text;
  }
  EXPECT_LT(svg.find(">fast, reordered<"), svg.find(">slow &amp; steady<"));  // from top to bottom
  EXPECT_EQ(chart.png().substr(1, 3), "PNG");
}

TEST(SpeedupChart, TakesASingleSample) {
  EXPECT_EQ(count(SpeedupChart("one", {{"alone", false, {{1024, 1}}}}).svg(), ">alone<"), 1);
}

void expect_measured(const nlohmann::json& result, double visible) {
  EXPECT_EQ(result["tokens"], 128);
  EXPECT_EQ(result["form"], "bits");
  EXPECT_EQ(result["baseline"], "causal");
  EXPECT_DOUBLE_EQ(result["density"], visible / (128.0 * 128));
  for (const char* times : {"unmasked_seconds", "every_tile_seconds", "seconds"}) {
    EXPECT_GT(result[times]["forward"].get<double>() * result[times]["backward"].get<double>(), 0) << times;
  }
}

TEST(Papers, RunsFromTheSmallestCaseToJson) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err};
  run_papers({.asked = true, .tables = {"medusa"}, .max_tokens = 128}, {.threads = 1, .json = true}, console);
  set_thread_count(0);
  const auto json = nlohmann::json::parse(out.str());
  ASSERT_EQ(json["results"].size(), 2U);
  EXPECT_EQ(json["threads"], 1);
  expect_measured(json["results"][0], 3 * 1 + 9 * 2 + 27 * 3 + 81 * 4);  // nodes and their ancestors
  expect_measured(json["results"][1], 120 + 117);                        // nodes and their parents
}

TEST(Papers, TimeTheKernelsThatAreNamed) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err};
  PapersRun how{.threads = 1, .json = true, .place = {.kernel = "scalar"}};
  run_papers({.asked = true, .tables = {"medusa"}, .max_tokens = 128}, how, console);
  EXPECT_EQ(nlohmann::json::parse(out.str())["kernel"], "scalar");
  how.place.kernel = "nonesuch";
  EXPECT_THROW(run_papers({.asked = true, .tables = {"medusa"}, .max_tokens = 128}, how, console), Error);
  set_thread_count(0);
}

TEST(Papers, GoWithFewOptionsOfBench) {
  const auto refusal = [](std::vector<std::string> arguments) {
    std::ostringstream out, err;
    Console console{.out = out, .err = err};
    arguments.insert(arguments.begin(), "bench");
    EXPECT_EQ(run(std::move(arguments), console), 2);
    return err.str();
  };
  for (const char* option : {"--batch", "--seqlen", "--heads", "--head-dim", "--mask"}) {
    EXPECT_NE(refusal({"--papers", option, "1"}).find(option), std::string::npos) << option;
  }
  EXPECT_NE(refusal({"--tables", "medusa"}).find("--papers"), std::string::npos);
  EXPECT_NE(refusal({"--papers", "--tables", "medussa"}).find("medussa"), std::string::npos);
}

TEST(Papers, RefusesAPlotThatIsNone) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err};
  EXPECT_THROW(run_papers({.tables = {"medusa"}, .plot = "plot.gif"}, {}, console), Error);
  EXPECT_THROW(run_papers({.tables = {"block-sparse"}, .plot = "plot.svg"}, {}, console), Error);
  EXPECT_THROW(run_papers({.tables = {"longformer"}, .max_tokens = 512}, {}, console), Error);
}

}  // namespace
}  // namespace flashmask::cli
