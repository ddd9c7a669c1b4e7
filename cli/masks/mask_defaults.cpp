// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/mask_defaults.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kit/random_numbers.h"

namespace flashmask::cli {
namespace {

/// Cuts the tokens into parts, given in sixteenths; the last part takes what rounding leaves.
std::vector<std::int64_t> cut(std::int64_t tokens, const std::vector<std::int64_t>& sixteenths) {
  std::vector<std::int64_t> parts;
  std::int64_t left = tokens;
  parts.reserve(sixteenths.size());
  for (const std::int64_t part : sixteenths) {
    parts.push_back(tokens * part / 16);
    left -= parts.back();
  }
  parts.back() += left;
  return parts;
}

}  // namespace

std::vector<std::int64_t> default_documents(std::int64_t tokens) { return cut(tokens, {5, 3, 2, 4, 2}); }

std::vector<std::int64_t> default_prefixes(const std::vector<std::int64_t>& documents) {
  std::vector<std::int64_t> prefixes;
  prefixes.reserve(documents.size());
  for (const std::int64_t document : documents) prefixes.push_back(document / 3);
  return prefixes;
}

std::vector<masks::SharedQuestion> default_questions(std::int64_t tokens) {
  const std::vector<std::int64_t> parts = cut(tokens, {4, 3, 2, 3, 1, 1, 2});
  return {{parts[0], {parts[1], parts[2]}}, {parts[3], {parts[4], parts[5], parts[6]}}};
}

std::int64_t default_window(std::int64_t tokens) {
  return std::max<std::int64_t>(1, std::min(tokens, std::max<std::int64_t>(4, tokens / 16)));
}

std::int64_t default_globals(std::int64_t tokens) { return std::min<std::int64_t>(16, tokens / 8); }

std::vector<masks::Span> default_spans(std::int64_t tokens) {
  return {{tokens / 5, 2 * tokens / 5}, {3 * tokens / 5, 4 * tokens / 5}};
}

std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> default_tree(std::int64_t tokens) {
  return {{-1, 0, 1, 1, 0, -1, 5, 5}, cut(tokens, {3, 2, 2, 2, 2, 2, 2, 1})};
}

std::vector<std::int64_t> default_grid(std::int64_t tokens, std::int64_t axes) {
  std::vector<std::int64_t> grid;
  for (std::int64_t left = axes; left > 1; --left) {
    const double root = std::pow(static_cast<double>(tokens), 1.0 / static_cast<double>(left));
    auto length = std::max<std::int64_t>(1, std::llround(std::floor(root + 1e-9)));
    while (tokens % length != 0) --length;
    grid.push_back(length);
    tokens /= length;
  }
  grid.push_back(tokens);
  return grid;
}

std::int64_t default_stride(std::int64_t tokens) {
  return std::max<std::int64_t>(1, std::llround(std::sqrt(static_cast<double>(tokens))));
}

std::vector<std::int64_t> default_candidates(std::int64_t tokens) {
  std::vector<std::int64_t> candidates;
  std::int64_t level = std::min<std::int64_t>(2, tokens);
  for (std::int64_t left = tokens; level > 0 && level <= left; level *= 2) {
    candidates.push_back(candidates.empty() ? level : 2);
    left -= level;
  }
  return candidates;
}

std::vector<std::int64_t> default_parents(std::int64_t tokens) {
  std::vector<std::int64_t> parents;
  for (std::int64_t node = 0; node < tokens; ++node) parents.push_back(node == 0 ? -1 : (node - 1) / 2);
  return parents;
}

std::vector<VisiblePair> random_ring(std::int64_t nodes, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<VisiblePair> edges;
  for (std::int64_t node = 0; node < nodes; ++node) {
    edges.push_back({node, (node + 1) % nodes});
    edges.push_back({node, random.below(nodes)});
  }
  return edges;
}

std::vector<std::int64_t> random_quarter(std::int64_t tokens, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::int64_t> drawn;
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (random.below(4) == 0) drawn.push_back(token);
  }
  return drawn;
}

std::vector<std::int64_t> buckets_in_order(std::int64_t tokens, std::int64_t heads, std::int64_t buckets,
                                           std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(heads * tokens));
  for (std::int64_t& bucket : drawn) bucket = random.below(buckets);
  return drawn;
}

std::vector<std::uint8_t> random_half(std::int64_t tokens, std::int64_t heads, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(heads * tokens));
  for (std::uint8_t& one : kept) one = static_cast<std::uint8_t>(random.below(2));
  return kept;
}

std::vector<masks::HashedToken> random_buckets(std::int64_t tokens, std::int64_t buckets, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<masks::HashedToken> sorted;
  for (std::int64_t position = 0; position < tokens; ++position) sorted.push_back({random.below(buckets), position});
  std::ranges::sort(sorted, {}, [](const auto& token) { return std::pair(token.bucket, token.position); });
  return sorted;
}

std::vector<std::int64_t> random_evictions(std::int64_t tokens, std::int64_t heads, std::uint64_t seed) {
  check::RandomNumbers random(seed);
  std::vector<std::int64_t> evicted_at(static_cast<std::size_t>(heads * tokens), tokens);
  for (std::int64_t head = 0; head < heads; ++head) {
    std::vector<std::int64_t> kept(static_cast<std::size_t>(tokens / 2));
    std::iota(kept.begin(), kept.end(), std::int64_t{0});
    for (std::int64_t row = tokens / 2; row < tokens; ++row) {
      kept.push_back(row);
      std::swap(kept[static_cast<std::size_t>(random.below(std::ssize(kept) - 1))], kept.back());
      evicted_at[static_cast<std::size_t>(head * tokens + kept.back())] = row;
      kept.pop_back();
    }
  }
  return evicted_at;
}

}  // namespace flashmask::cli
