// SPDX-License-Identifier: Apache-2.0
#include "flashmask/reorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "flashmask/builders.h"
#include "flashmask/schedule.h"
#include "kit/random_numbers.h"
#include "mask/scrambled_masks.h"
#include "mask/visibility.h"
#include "schedule/reorder/cuthill_mckee.h"

namespace flashmask {
namespace {

using check::RandomNumbers;
using test::identity;
using test::Indices;
using test::inverse;
using test::Pairs;
using test::pairs_where;
using test::random_order;
using test::renamed;
using test::scrambled;
using test::scrambled_band;
using testing::refusal;

bool is_permutation_of(Indices order, std::int64_t length) {
  std::sort(order.begin(), order.end());
  return order == identity(length);
}

Mask random_mask(const MaskShape& shape, std::int64_t percent, std::uint64_t seed) {
  RandomNumbers random(seed);
  std::vector<std::uint8_t> visible(static_cast<std::size_t>(shape.batch * shape.heads * shape.rows * shape.columns));
  for (std::uint8_t& score : visible) score = random.below(100) < percent;
  return from_dense(shape, visible);
}

/// Tiles in which anything is visible, score by score.
std::int64_t count_active_tiles(const Mask& mask, TileShape tile) {
  const MaskShape& shape = mask.shape();
  const std::vector<std::uint8_t> scores = expand(mask);
  std::set<std::array<std::int64_t, 3>> active;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t row = index / shape.columns % shape.rows;
    if (scores[i] != 0)
      active.insert({index / shape.columns / shape.rows, row / tile.rows, index % shape.columns / tile.columns});
  }
  return std::ssize(active);
}

/// One batch entry's part of [batch, length].
Indices entry(const Indices& all, std::int64_t batch, std::int64_t length) {
  return {all.begin() + batch * length, all.begin() + (batch + 1) * length};
}

/// The lists are permutations, and the new mask shows what the old one does under them.
void expect_same_scores(const Mask& mask, const Reordering& made, std::int64_t batch) {
  const Indices rows = entry(made.rows, batch, mask.shape().rows);
  const Indices columns = entry(made.columns, batch, mask.shape().columns);
  EXPECT_TRUE(is_permutation_of(rows, mask.shape().rows));
  EXPECT_TRUE(is_permutation_of(columns, mask.shape().columns));
  const testing::Table row(rows), column(columns);
  for (std::int64_t head = 0; head < mask.shape().heads; ++head) {
    const auto seen = [&](auto i, auto j) { return mask.visible(batch, head, row[i], column[j]); };
    testing::expect_visible(made.mask, seen, batch, head);
  }
}

/// What a Reordering promises, whatever order it chose.
void expect_sound(const Mask& mask, const Reordering& made) {
  ASSERT_EQ(made.mask.shape(), mask.shape());
  EXPECT_EQ(made.tiles_before, count_active_tiles(mask, made.tile));
  EXPECT_EQ(made.tiles_after, count_active_tiles(made.mask, made.tile));
  EXPECT_FALSE(made.why.empty());
  for (std::int64_t batch = 0; batch < mask.shape().batch; ++batch) expect_same_scores(mask, made, batch);
}

void expect_declined(const Mask& mask, TileShape tile) {
  const Reordering made = reorder(mask, tile);
  EXPECT_FALSE(made.gained) << mask.description() << ": " << made.why;
  EXPECT_FALSE(made.why.empty());
  EXPECT_EQ(made.tiles_after, made.tiles_before);
  Indices rows, columns;
  for (std::int64_t batch = 0; batch < mask.shape().batch; ++batch) {
    std::ranges::copy(identity(mask.shape().rows), std::back_inserter(rows));
    std::ranges::copy(identity(mask.shape().columns), std::back_inserter(columns));
  }
  EXPECT_EQ(made.rows, rows);
  EXPECT_EQ(made.columns, columns);
  EXPECT_EQ(made.mask.description(), mask.description());
}

TEST(Permute, PutsEveryScoreWhereTheListsSay) {
  RandomNumbers random(3);
  for (const auto& size : testing::sizes) {
    const MaskShape shape{.batch = 2, .heads = 3, .rows = size.first, .columns = size.second};
    const Mask mask = random_mask(shape, 30, 4);
    Reordering made{mask, {}, {}, {}, 0, 0, true, ""};
    for (int batch = 0; batch < 2; ++batch) {
      std::ranges::copy(random_order(shape.rows, random), std::back_inserter(made.rows));
      std::ranges::copy(random_order(shape.columns, random), std::back_inserter(made.columns));
    }
    made.mask = permute(mask, made.rows, made.columns);
    for (int batch = 0; batch < 2; ++batch) expect_same_scores(mask, made, batch);
  }
}

TEST(Permute, TakesIntervalsToo) {
  RandomNumbers random(5);
  const Indices order = random_order(200, random);
  const testing::Table token(order);
  testing::expect_visible(permute(masks::causal(200, 200), order, order),
                          [&](auto i, auto j) { return token[j] <= token[i]; });
}

TEST(Permute, OfTheInversesComesBack) {
  RandomNumbers random(6);
  const MaskShape shape{.batch = 1, .heads = 2, .rows = 190, .columns = 260};
  const Mask mask = random_mask(shape, 20, 7);
  const Indices rows = random_order(190, random), columns = random_order(260, random);
  const Mask back = permute(permute(mask, rows, columns), inverse(rows), inverse(columns));
  EXPECT_EQ(expand(back), expand(mask));
}

TEST(Permute, RefusesListsThatAreNoPermutation) {
  const std::vector<Mask> two(2, masks::full(3, 4));
  const Mask mask = stack_batch(two);
  const Indices rows = {0, 1, 2, 2, 1, 0}, columns = {0, 1, 2, 3, 3, 2, 1, 0};
  const auto spoilt = [](Indices list, std::size_t at, std::int64_t value) {
    list[at] = value;
    return list;
  };
  EXPECT_EQ(refusal([&] { permute(mask, spoilt(rows, 4, 3), columns); }),
            "permute: rows[4] is 3; give indices from 0 to below 3");
  EXPECT_EQ(refusal([&] { permute(mask, spoilt(rows, 1, -1), columns); }),
            "permute: rows[1] is -1; give indices from 0 to below 3");
  EXPECT_EQ(refusal([&] { permute(mask, rows, spoilt(columns, 6, 2)); }),
            "permute: columns[6] is 2, as columns[5] is; give every index once");
  EXPECT_EQ(refusal([&] {
              permute(mask, Indices{0, 1, 2}, columns);
            }),
            "permute: rows has 3 indices; give 6, a permutation of 3 for each batch entry of the mask");
}

/// An undirected graph of these edges, both ways.
Graph graph_of(std::int64_t nodes, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  std::vector<std::set<std::uint32_t>> joined(static_cast<std::size_t>(nodes));
  for (const auto& [a, b] : edges) {
    joined[a].insert(b);
    joined[b].insert(a);
  }
  Graph graph;
  for (const std::set<std::uint32_t>& neighbours : joined) {
    graph.neighbours.insert(graph.neighbours.end(), neighbours.begin(), neighbours.end());
    graph.offsets.push_back(std::ssize(graph.neighbours));
  }
  return graph;
}

/// Largest distance in the order between two nodes that are joined.
std::int64_t bandwidth(const Graph& graph, const std::vector<std::uint32_t>& order) {
  Indices position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<std::int64_t>(i);
  std::int64_t widest = 0;
  for (std::int64_t v = 0; v < graph.nodes(); ++v) {
    for (const std::uint32_t w : graph.neighbours_of(v))
      widest = std::max(widest, std::abs(position[static_cast<std::size_t>(v)] - position[w]));
  }
  return widest;
}

TEST(ReverseCuthillMckee, IsAPermutationOfAnyGraph) {
  RandomNumbers random(8);
  const int graphs = test::small_tests() ? 10 : 100;
  for (int i = 0; i < graphs; ++i) {
    const std::int64_t nodes = random.below(80);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    for (std::int64_t edge = nodes == 0 ? 0 : random.below(2 * nodes + 1); edge > 0; --edge)
      edges.emplace_back(random.below(nodes), random.below(nodes));
    const std::vector<std::uint32_t> order = reverse_cuthill_mckee(graph_of(nodes, edges));
    EXPECT_TRUE(is_permutation_of(Indices(order.begin(), order.end()), nodes));
  }
}

TEST(ReverseCuthillMckee, StraightensPathsAndGridsToTheirBandwidth) {
  RandomNumbers random(9);
  const Indices name = random_order(400, random);
  const auto node = [&](std::int64_t v) { return static_cast<std::uint32_t>(name[static_cast<std::size_t>(v)]); };
  std::vector<std::pair<std::uint32_t, std::uint32_t>> path, grid;
  for (std::int64_t v = 0; v + 1 < 400; ++v) path.emplace_back(node(v), node(v + 1));
  for (std::int64_t v = 0; v < 400; ++v) {
    if (v % 20 != 19) grid.emplace_back(node(v), node(v + 1));
    if (v + 20 < 400) grid.emplace_back(node(v), node(v + 20));
  }
  EXPECT_EQ(bandwidth(graph_of(400, path), reverse_cuthill_mckee(graph_of(400, path))), 1);
  EXPECT_EQ(bandwidth(graph_of(400, grid), reverse_cuthill_mckee(graph_of(400, grid))), 20);
}

TEST(ReverseCuthillMckee, StartsAtAnEndWhateverTheDegrees) {
  // A grid of 3 × 100 in whose middle hangs the only node of degree 1: from there a search runs both ways at once.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges = {{150, 300}};
  for (std::uint32_t v = 0; v < 300; ++v) {
    if (v % 3 != 2) edges.emplace_back(v, v + 1);
    if (v + 3 < 300) edges.emplace_back(v, v + 3);
  }
  EXPECT_LE(bandwidth(graph_of(301, edges), reverse_cuthill_mckee(graph_of(301, edges))), 4);
}

TEST(ReverseCuthillMckee, KeepsComponentsTogetherAndPutsLonelyNodesLast) {
  // Three rings of 10 that take turns, and every fourth node alone.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t v = 0; v < 40; ++v) {
    if (v % 4 != 3) edges.emplace_back(v, (v + 4) % 40);
  }
  const std::vector<std::uint32_t> order = reverse_cuthill_mckee(graph_of(40, edges));
  std::vector<std::uint32_t> rings;
  for (std::size_t i = 0; i < 30; i += 10) {
    for (std::size_t k = 1; k < 10; ++k) EXPECT_EQ(order[i + k] % 4, order[i] % 4);
    rings.push_back(order[i] % 4);
  }
  std::sort(rings.begin(), rings.end());
  EXPECT_EQ(rings, (std::vector<std::uint32_t>{0, 1, 2}));
  for (std::size_t i = 30; i < 40; ++i) EXPECT_EQ(order[i], 4 * (i - 30) + 3);
}

TEST(ReverseCuthillMckee, TakesCompressedSparseRows) {
  // The path 2 - 0 - 3 - 1, and node 4 alone.
  const Indices order = reverse_cuthill_mckee(Indices{0, 2, 3, 4, 6, 6}, Indices{2, 3, 3, 0, 0, 1});
  EXPECT_TRUE(order == (Indices{2, 0, 3, 1, 4}) || order == (Indices{1, 3, 0, 2, 4}));
  EXPECT_EQ(reverse_cuthill_mckee(Indices{0}, Indices()), Indices());
}

TEST(ReverseCuthillMckee, IsAPermutationOfAGraphWithOneWayEdges) {
  RandomNumbers random(22);
  for (int i = 0; i < 50; ++i) {
    const std::int64_t nodes = 1 + random.below(60);
    Indices offsets = {0}, columns;
    for (std::int64_t node = 0; node < nodes; ++node) {
      for (std::int64_t edge = random.below(3); edge > 0; --edge) columns.push_back(random.below(nodes));
      offsets.push_back(std::ssize(columns));
    }
    EXPECT_TRUE(is_permutation_of(reverse_cuthill_mckee(offsets, columns), nodes));
  }
}

TEST(ReverseCuthillMckee, RefusesRowsThatAreNone) {
  const auto message = [](const Indices& offsets, const Indices& columns) {
    return refusal([&] { reverse_cuthill_mckee(offsets, columns); });
  };
  const std::string name = "reverse_cuthill_mckee: ";
  EXPECT_EQ(message({}, {}), name + "offsets has 0 values; give rows + 1, which is 1");
  EXPECT_EQ(message({0, 2, 1}, {0, 1}), name + "offsets[2] is 1; give a value from 2 to 2");
  EXPECT_EQ(message({0, 1, 2}, {0, 2}), name + "column_indices[1] is 2; give a column from 0 to below 2");
}

TEST(Reorder, GathersAScrambledBandToWhatItWas) {
  for (const TileShape tile : {TileShape{64, 64}, TileShape{32, 48}}) {
    const Mask mask = scrambled_band(1024, 10);
    const Reordering made = reorder(mask, tile);
    EXPECT_TRUE(made.gained) << made.why;
    expect_sound(mask, made);
    const std::int64_t unscrambled = schedule(masks::window(1024, 1024, 10, 10).lowered(), tile).counts().active();
    EXPECT_LE(made.tiles_after, unscrambled + unscrambled / 10);
  }
}

TEST(Reorder, GathersAScrambledGrid) {
  constexpr std::int64_t kSide = 32;
  const Mask mask = scrambled(kSide * kSide, 2, [](auto i, auto j) {
    return std::abs(i % kSide - j % kSide) + std::abs(i / kSide - j / kSide) <= 1;
  });
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  // Neighbours are at most 32 places apart: a row of tiles reaches one tile to either side.
  EXPECT_LE(made.tiles_after, 3 * 16 - 2);
}

TEST(Reorder, GivesRowsAndColumnsOrdersOfTheirOwn) {
  RandomNumbers random(10);
  const Pairs band = pairs_where(700, 1100, [](auto i, auto j) { return std::abs(11 * i - 7 * j) <= 100; });
  const Mask mask = renamed(700, 1100, band, random_order(700, random), random_order(1100, random));
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  EXPECT_NE(made.why.find("bipartite"), std::string::npos) << made.why;
  expect_sound(mask, made);
  EXPECT_LE(made.tiles_after, 3 * 18);
}

TEST(Reorder, FindsTheTrianglesOfScrambledCausalDocuments) {
  const Mask mask = scrambled(1024, 11, [](auto i, auto j) { return i / 128 == j / 128 && j <= i; });
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  EXPECT_EQ(made.tiles_after, 8 * 3);
}

TEST(Reorder, FindsDocumentsTooDenseToReadWhole) {
  // 1,024 scores a row: four times what a graph keeps.
  const Mask mask = scrambled(2048, 12, [](auto i, auto j) { return i / 1024 == j / 1024; });
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  EXPECT_EQ(made.tiles_before, 32 * 32);
  EXPECT_EQ(made.tiles_after, 2 * 16 * 16);
}

TEST(Reorder, NearlyFindsTheTrianglesOfDocumentsTooDenseToReadWhole) {
  const Mask mask = scrambled(2048, 20, [](auto i, auto j) { return i / 1024 == j / 1024 && j <= i; });
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  EXPECT_LE(made.tiles_after, 2 * (16 * 17 / 2) * 14 / 10);
}

TEST(Reorder, SortsKeysWhenOnlyTheyWereScrambled) {
  RandomNumbers random(13);
  const Pairs band = pairs_where(1024, 1024, [](auto i, auto j) { return std::abs(i - j) <= 8; });
  const Mask mask = renamed(1024, 1024, band, identity(1024), random_order(1024, random));
  ASSERT_EQ(mask.lowered().form(), MaskForm::intervals);
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  EXPECT_LE(made.tiles_after, 3 * 16);
}

TEST(Reorder, LooksPastTokensThatSeeAll) {
  // A band with four global tokens; on their account any two tokens are two steps apart.
  const Mask mask =
      scrambled(1024, 21, [](auto i, auto j) { return std::abs(i - j) <= 8 || i % 256 == 100 || j % 256 == 100; });
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  EXPECT_LE(made.tiles_after, 3 * 16 + 2 * 16);
}

TEST(Reorder, SharesAnOrderAmongHeads) {
  // Each head sees a third of one band: an order made for one of them does little for the others.
  std::vector<Mask> heads;
  for (const std::int64_t third : {0, 1, 2}) {
    heads.push_back(
        scrambled(900, 1, [&](auto i, auto j) { return std::min(i, j) / 300 == third && std::abs(i - j) <= 7; }));
  }
  const Mask mask = stack_heads(heads);
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  EXPECT_EQ(std::ssize(made.rows), 900);
  expect_sound(mask, made);
  EXPECT_LE(made.tiles_after, 3 * 3 * 6);
}

TEST(Reorder, FindsOneOrderABatchEntryAndLeavesThoseThatGainNothing) {
  const std::vector<Mask> entries = {scrambled_band(900, 5, 1), masks::causal(900, 900), scrambled_band(900, 7, 2)};
  const Mask mask = stack_batch(entries);
  const Reordering made = reorder(mask);
  EXPECT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  EXPECT_EQ(entry(made.rows, 1, 900), identity(900));
  EXPECT_LE(made.tiles_after, 3 * 15 + 15 * 16 / 2 + 3 * 15);
}

TEST(Reorder, PutsTokensThatNobodySeesLast) {
  // Every fifth token takes no part.
  const Mask mask =
      scrambled(1000, 14, [](auto i, auto j) { return i % 5 != 4 && j % 5 != 4 && std::abs(i / 5 - j / 5) <= 2; });
  const Reordering made = reorder(mask);
  ASSERT_TRUE(made.gained) << made.why;
  expect_sound(mask, made);
  for (std::int64_t i = 800; i < 1000; ++i) {
    for (std::int64_t j = 0; j < 1000; ++j)
      ASSERT_FALSE(made.mask.visible(0, 0, i, j) || made.mask.visible(0, 0, j, i));
  }
}

TEST(Reorder, IsTheSameForAnyNumberOfThreads) {
  const Mask mask = scrambled(1500, 15, [](auto i, auto j) { return i / 300 == j / 300 && j <= i; });
  const Reordering one = reorder(mask, {}, serial_executor());
  set_thread_count(5);
  const Reordering five = reorder(mask);
  set_thread_count(0);
  EXPECT_EQ(one.rows, five.rows);
  EXPECT_EQ(one.columns, five.columns);
  EXPECT_EQ(one.why, five.why);
}

TEST(Reorder, DeclinesWhatGainsNothing) {
  for (const std::int64_t tile : {64, 128}) {
    const TileShape shape{static_cast<std::int32_t>(tile), static_cast<std::int32_t>(tile)};
    expect_declined(masks::full(1000, 700), shape);
    expect_declined(masks::causal(1000, 1000), shape);
    expect_declined(masks::sliding_window(1000, 1000, 100), shape);
    expect_declined(masks::causal_document(Indices{300, 200, 450}, 1000), shape);
    expect_declined(random_mask({1, 1, 1000, 1000}, 10, 16), shape);
    expect_declined(random_mask({2, 2, 500, 800}, 1, 17), shape);
    expect_declined(~masks::full(500, 500), shape);
    expect_declined(masks::full(0, 40), shape);
    expect_declined(masks::full(1, 1), shape);
  }
}

TEST(Reorder, DeclinesTheSymmetricRandomMask) {
  const std::int64_t tokens = test::small_tests() ? 1024 : 4096;
  RandomNumbers random(18);
  Pairs pairs;
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = i; j < tokens; ++j) {
      const double likely = std::max(0.5 * std::exp(-0.3 * static_cast<double>(j - i)), 0.0002);
      if (random.below(1'000'000) >= static_cast<std::int64_t>(1e6 * likely)) continue;
      pairs.push_back({i, j});
      pairs.push_back({j, i});
    }
  }
  const Reordering made = reorder(from_pairs(tokens, tokens, pairs));
  EXPECT_FALSE(made.gained) << made.why;
}

TEST(Reorder, DeclinesIntervalsWhoseBitsWouldNotFit) {
  // 25 billion scores, half of them in tiles that are partial: 3 GB as bits.
  constexpr std::int64_t kTokens = 160'000;
  RandomNumbers random(19);
  IntervalMask mask(MaskShape{1, 1, kTokens, kTokens});
  for (std::int64_t j = 0; j < kTokens; ++j) {
    const auto begin = static_cast<std::int32_t>(random.below(kTokens));
    mask.set(static_cast<std::size_t>(j), {begin, static_cast<std::int32_t>(kTokens)}, {});
  }
  const Reordering made = reorder(Mask(std::move(mask), "random ends"));
  EXPECT_FALSE(made.gained);
  EXPECT_NE(made.why.find("partial cells"), std::string::npos) << made.why;
}

TEST(Reorder, RefusesATileWithoutScores) {
  EXPECT_EQ(refusal([] {
              reorder(masks::full(3, 3), {0, 64});
            }),
            "reorder: tile is 0 x 64; give at least one row and one column");
}

}  // namespace
}  // namespace flashmask
