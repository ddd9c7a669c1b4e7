// SPDX-License-Identifier: Apache-2.0
#include "cli/papers/papers_cases.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cli/masks/workload.h"
#include "cli/papers/papers_masks.h"
#include "flashmask/block_map_builders.h"
#include "flashmask/builders.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kLeastTokens = 1024;
constexpr std::int64_t kMostTokens = 16384;

/// Timings published with Binary Block Masking (github.com/agshar96/BINFLASH, commit 5cd7dfe, the combined CSVs of
/// benchresult_applications; RTX 3060, 4 × 32 heads of 64): unmasked ÷ Binary Block Masking, at 1,024 … 16,384.
using AtLengths = std::array<double, 5>;
constexpr AtLengths kAlpacaCausal = {1.68, 2.80, 4.11, 6.64, 9.63};
constexpr AtLengths kAlpacaBidirectional = {1.69, 2.65, 3.93, 6.33, 9.35};
constexpr AtLengths kWindowed = {3.04, 5.18, 8.60, 13.4, 18.1};
constexpr AtLengths kDilated = {2.93, 4.93, 8.31, 12.7, 16.8};
constexpr AtLengths kGlobal = {1.18, 1.71, 2.72, 3.86, 7.11};
constexpr AtLengths kRandom = {1.35, 1.59, 1.67, 1.83, 2.13};
constexpr AtLengths kRandomReordered = {3.57, 5.93, 9.13, 13.5, 10.7};
/// Speed-ups for its self-and-parent trees: by levels, and by candidates.
constexpr std::array<double, 5> kTreeLevels = {0.98, 1.40, 3.86, 4.76, 9.38};
constexpr std::array<double, 8> kTreeCandidates = {0.96, 1.50, 2.05, 3.23, 5.15, 7.40, 6.80, 8.92};

using Cases = std::vector<PapersCase>;
/// Adds one mask at every length; builder(tokens) returns the function that builds it.
void add_lengths(Cases& cases, const PapersCase& common,
                 const std::function<std::function<Mask()>(std::int64_t)>& builder, const AtLengths* plain = nullptr,
                 const AtLengths* reordered = nullptr) {
  std::size_t at = 0;
  for (std::int64_t tokens = kLeastTokens; tokens <= kMostTokens; tokens *= 2, ++at) {
    PapersCase one = common;
    one.tokens = tokens;
    one.build = builder(tokens);
    one.published = {plain == nullptr ? 0 : (*plain)[at], reordered == nullptr ? 0 : (*reordered)[at]};
    cases.push_back(std::move(one));
  }
}

/// Returns a builder of the mask of the documents in file order up to the first that does not fit, padding after them.
/// The first call reads the file.
std::function<Mask()> packed_alpaca(Task task, std::int64_t tokens) {
  const WorkloadRequest request{
      .csv = "", .prompt = "bert_in", .outputs = {"bert_out"}, .task = task, .seqlen = tokens, .sequences = 1};
  return [request, documents = std::make_shared<std::optional<Workload>>()] {
    if (!*documents) *documents = load_workload(request);
    return (*documents)->mask();
  };
}

Cases alpaca() {
  Cases cases;
  add_lengths(
      cases, {.table = "alpaca", .mask = "causal", .causal = true},
      [](std::int64_t tokens) { return packed_alpaca(Task::sft, tokens); }, &kAlpacaCausal);
  add_lengths(
      cases, {.table = "alpaca", .mask = "bidirectional inputs", .causal = true},
      [](std::int64_t tokens) { return packed_alpaca(Task::prefix, tokens); }, &kAlpacaBidirectional);
  return cases;
}

/// A tree of `levels` levels of `candidates` children each, padded to a power of two.
PapersCase medusa_case(masks::TreeSight sight, std::size_t levels, std::int64_t candidates) {
  const std::vector<std::int64_t> tree(levels, candidates);
  const std::int64_t nodes = std::ssize(masks::medusa_parents(tree));
  PapersCase one{.table = "medusa", .causal = true};
  one.mask = sight == masks::TreeSight::ancestors ? "ancestors" : "self and parent";
  one.size = "K = " + std::to_string(levels) + ", s = " + std::to_string(candidates) + ": " + std::to_string(nodes);
  for (one.tokens = 1; one.tokens < nodes;) one.tokens *= 2;
  one.in_plot = one.tokens >= kLeastTokens;
  one.build = [tree, tokens = one.tokens, sight] { return masks::medusa_tree(tree, tokens, 0, sight); };
  return one;
}

Cases medusa() {
  Cases cases;
  for (const auto sight : {masks::TreeSight::ancestors, masks::TreeSight::parent}) {
    const bool published = sight == masks::TreeSight::parent;
    for (std::size_t k = 0; k < kTreeLevels.size(); ++k) {
      cases.push_back(medusa_case(sight, 4 + k, 3));
      if (published) cases.back().published.plain = kTreeLevels[k];
    }
    for (std::size_t k = 1; k < kTreeCandidates.size(); ++k) {  // the first is already among the levels above
      cases.push_back(medusa_case(sight, 4, 3 + static_cast<std::int64_t>(k)));
      cases.back().in_plot = false;
      if (published) cases.back().published.plain = kTreeCandidates[k];
    }
  }
  return cases;
}

/// Makes a builder for add_lengths() from a function of the tokens.
template <class Build>
auto of_tokens(Build build) {
  return [build](std::int64_t tokens) { return [build, tokens] { return build(tokens); }; };
}

Cases longformer() {
  Cases cases;
  add_lengths(cases, {.table = "longformer", .mask = "windowed"},
              of_tokens([](std::int64_t tokens) { return masks::window(tokens, tokens, 4, 4); }), &kWindowed);
  add_lengths(cases, {.table = "longformer", .mask = "dilated"},
              of_tokens([](std::int64_t tokens) { return masks::dilated_window(tokens, tokens, 4, 4, 2); }), &kDilated);
  add_lengths(cases, {.table = "longformer", .mask = "global"}, of_tokens(longformer_global), &kGlobal);
  return cases;
}

Cases reordering() {
  Cases cases;
  add_lengths(cases, {.table = "reordering", .mask = "scrambled band"},
              of_tokens([](std::int64_t tokens) { return scrambled_band(tokens, 16); }));
  add_lengths(cases, {.table = "reordering", .mask = "scrambled grid"}, of_tokens(scrambled_grid));
  add_lengths(cases, {.table = "reordering", .mask = "symmetric random"}, of_tokens(symmetric_random), &kRandom,
              &kRandomReordered);
  return cases;
}

/// Keeps 1 / inverse_share of the blocks: four per row of blocks, or two of twice the size where blocks would be
/// smaller than `least_block`.
BlockMap butterfly(std::int64_t tokens, std::int64_t inverse_share, std::int64_t least_block) {
  const MaskShape shape{.batch = 1, .heads = 1, .rows = tokens, .columns = tokens};
  const std::int64_t block = tokens / inverse_share / 4;
  return block >= least_block ? block_maps::butterfly(shape, block, 3) : block_maps::butterfly(shape, 2 * block, 1);
}

Cases block_sparse(std::int64_t max_tokens) {
  constexpr std::int64_t kBlock = 128;
  Cases cases;
  const auto limit = static_cast<std::uint64_t>(std::min(max_tokens, kMostTokens));
  const auto tokens = static_cast<std::int64_t>(std::bit_floor(limit));
  for (const bool random : {false, true}) {
    for (std::int64_t inverse = 2; inverse <= 64 && tokens % (2 * kBlock * inverse) == 0; inverse *= 2) {
      PapersCase one{.table = "block-sparse", .mask = random ? "random" : "butterfly", .tokens = tokens};
      one.size = "1/" + std::to_string(inverse);
      one.head_dim = 128;
      one.in_plot = false;
      one.kept_blocks = 1.0 / static_cast<double>(inverse);
      one.build = [random, tokens, inverse] {
        const MaskShape shape{.batch = 1, .heads = 1, .rows = tokens, .columns = tokens};
        return from_block_map(random ? block_maps::random(shape, kBlock, tokens / kBlock / inverse, 1)
                                     : butterfly(tokens, inverse, kBlock));
      };
      cases.push_back(std::move(one));
    }
  }
  return cases;
}

Cases all_cases(const std::string& table, std::int64_t max_tokens) {
  static const std::map<std::string, std::function<Cases(std::int64_t)>> by_name = {
      {"alpaca", [](std::int64_t) { return alpaca(); }},
      {"medusa", [](std::int64_t) { return medusa(); }},
      {"longformer", [](std::int64_t) { return longformer(); }},
      {"reordering", [](std::int64_t) { return reordering(); }},
      {"block-sparse", block_sparse}};
  return by_name.at(table)(max_tokens);
}

}  // namespace

std::vector<PapersCase> papers_cases(const std::vector<std::string>& tables, std::int64_t max_tokens) {
  Cases chosen;
  for (const std::string& table : kPapersTables) {
    if (std::find(tables.begin(), tables.end(), table) == tables.end()) continue;
    for (PapersCase& one : all_cases(table, max_tokens)) {
      if (one.tokens <= max_tokens) chosen.push_back(std::move(one));
    }
  }
  return chosen;
}

}  // namespace flashmask::cli
