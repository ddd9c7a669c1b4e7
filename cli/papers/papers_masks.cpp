// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers_masks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "flashmask/builders.h"

namespace flashmask::cli {
namespace {

/// The C++ standard fixes the numbers of this engine, but not those of its distributions.
using Random = std::mt19937_64;

double uniform(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::int64_t below(Random& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
}

/// The binary logarithm of a power of two.
std::int64_t doublings(std::int64_t tokens) {
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(tokens))) - 1;
}

std::vector<std::int64_t> random_order(std::int64_t count) {
  Random random(1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t left = count; left > 1; --left) {
    std::swap(order[static_cast<std::size_t>(left - 1)], order[static_cast<std::size_t>(below(random, left))]);
  }
  return order;
}

/// An undirected graph with its tokens renamed at random.
Mask scrambled(std::int64_t tokens, std::vector<VisiblePair> edges, const std::string& description) {
  const std::vector<std::int64_t> names = random_order(tokens);
  for (VisiblePair& edge : edges) {
    edge = {names[static_cast<std::size_t>(edge.row)], names[static_cast<std::size_t>(edge.column)]};
  }
  const Mask mask = masks::graph(tokens, edges, {.symmetric = true, .self_loops = true});
  return {mask.lowered(), description, mask.misfit()};
}

}  // namespace

Mask longformer_global(std::int64_t tokens) {
  constexpr std::int64_t kWindow = 4;
  const std::int64_t drawn = std::max<std::int64_t>(doublings(tokens) - 2, 0);
  std::vector<std::int64_t> globals = {0, 1};
  for (const std::int64_t position : random_order(tokens - 2)) {
    if (std::ssize(globals) == 2 + drawn) break;
    globals.push_back(position + 2);
  }
  return masks::global_tokens(tokens, globals, kWindow, kWindow);
}

Mask scrambled_band(std::int64_t tokens, std::int64_t half_width) {
  std::vector<VisiblePair> edges;
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = i + 1; j <= std::min(i + half_width, tokens - 1); ++j) edges.push_back({i, j});
  }
  return scrambled(tokens, std::move(edges), "scrambled band");
}

Mask scrambled_grid(std::int64_t tokens) {
  const std::int64_t width = std::int64_t{1} << (doublings(tokens) + 1) / 2;
  std::vector<VisiblePair> edges;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if ((i + 1) % width != 0) edges.push_back({i, i + 1});
    if (i + width < tokens) edges.push_back({i, i + width});
  }
  return scrambled(tokens, std::move(edges), "scrambled grid");
}

Mask symmetric_random(std::int64_t tokens) {
  constexpr double kFar = 0.0002;
  constexpr std::int64_t kNear = 26;  // the last distance whose probability exceeds kFar
  Random random(1);
  std::vector<VisiblePair> edges;
  const double log_unseen = std::log1p(-kFar);
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = i + 1; j <= std::min(i + kNear, tokens - 1); ++j) {
      if (uniform(random) < 0.5 * std::exp(-0.3 * static_cast<double>(j - i))) edges.push_back({i, j});
    }
    // Draws the distance to the next seen token at once: a geometric distribution with success probability kFar.
    for (std::int64_t j = i + kNear; j < tokens;) {
      const double throws = std::floor(std::log1p(-uniform(random)) / log_unseen);
      j += 1 + static_cast<std::int64_t>(std::min(throws, static_cast<double>(tokens)));
      if (j < tokens) edges.push_back({i, j});
    }
  }
  const Mask mask = masks::graph(tokens, edges, {.symmetric = true, .self_loops = true});
  return {mask.lowered(), "symmetric random", mask.misfit()};
}

}  // namespace flashmask::cli
