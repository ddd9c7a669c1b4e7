// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/mask_arguments.h"

#include <algorithm>
#include <limits>

#include "cli/base/memory_limit.h"
#include "cli/base/names.h"
#include "cli/masks/given_values.h"
#include "cli/masks/mask_defaults.h"
#include "cli/masks/sparse_families.h"
#include "flashmask/builders.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

std::int64_t window_of(const MaskArguments& given) { return given.window.value_or(default_window(tokens_of(given))); }

/// Numbers of tokens, each checked because they are added up where --tokens is not given.
Numbers parse_lengths(const std::string& text, const std::string& option, char separator = ',') {
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  Numbers lengths = parse_numbers(text, option, separator);
  if (std::any_of(lengths.begin(), lengths.end(), [](std::int64_t n) { return n < 0 || n > kLongest; })) {
    refuse_option(option, text, "lengths from 0 to " + std::to_string(kLongest));
  }
  return lengths;
}

Numbers documents_of(const MaskArguments& given) {
  return given.documents ? parse_lengths(*given.documents, "documents") : default_documents(tokens_of(given));
}

Numbers prefixes_of(const MaskArguments& given, const Numbers& documents) {
  return given.prefixes ? parse_numbers(*given.prefixes, "prefixes") : default_prefixes(documents);
}

/// "2:5,6:8" → {2, 5}, {6, 8}.
std::vector<masks::Span> spans_of(const MaskArguments& given) {
  if (!given.spans) return default_spans(tokens_of(given));
  std::vector<masks::Span> spans;
  for (const auto& [begin, end] : parse_pairs(*given.spans, "spans", "ranges begin:end, such as 2:5,6:8")) {
    spans.push_back({begin, end});
  }
  return spans;
}

/// "4:3:3,6:2:2" → a question of 4 with answers of 3 and 3, and one of 6 with answers of 2 and 2.
std::vector<masks::SharedQuestion> questions_of(const MaskArguments& given) {
  if (!given.documents) return default_questions(tokens_of(given));
  std::vector<masks::SharedQuestion> questions;
  for (const std::string& text : split(*given.documents, ',')) {
    const Numbers parts = parse_lengths(text, "documents", ':');
    questions.push_back({parts[0], Numbers(parts.begin() + 1, parts.end())});
  }
  return questions;
}

std::int64_t tokens_in(const std::vector<masks::SharedQuestion>& questions) {
  std::int64_t tokens = 0;
  for (const auto& [question, answers] : questions) tokens += question + sum(answers);
  return tokens;
}

Mask build_full(const MaskArguments& given) { return masks::full(tokens_of(given), columns_of(given)); }

Mask build_causal(const MaskArguments& given) { return masks::causal(tokens_of(given), columns_of(given)); }

Mask build_sliding_window(const MaskArguments& given) {
  return masks::sliding_window(tokens_of(given), columns_of(given), window_of(given));
}

Mask build_window(const MaskArguments& given) {
  const bool silent = !given.left && !given.right;  // if only one side is given, the other has no limit
  const std::int64_t usual = default_window(tokens_of(given)) - 1;
  return masks::window(tokens_of(given), columns_of(given), silent ? usual : given.left, silent ? usual : given.right);
}

Mask build_causal_document(const MaskArguments& given) {
  const Numbers documents = documents_of(given);
  return masks::causal_document(documents, tokens_or(given, sum(documents)));
}

Mask build_document(const MaskArguments& given) {
  const Numbers documents = documents_of(given);
  return masks::document(documents, tokens_or(given, sum(documents)));
}

Mask build_sliding_window_document(const MaskArguments& given) {
  const Numbers documents = documents_of(given);
  const std::int64_t tokens = tokens_or(given, sum(documents));
  return masks::sliding_window_document(documents, tokens, given.window.value_or(default_window(tokens)));
}

Mask build_shared_question(const MaskArguments& given) {
  const auto questions = questions_of(given);
  return masks::shared_question(questions, tokens_or(given, tokens_in(questions)));
}

Mask build_global_sliding_window(const MaskArguments& given) {
  const std::int64_t tokens = tokens_of(given), side = default_window(tokens) - 1;
  return masks::global_sliding_window(tokens, given.globals.value_or(default_globals(tokens)),
                                      given.left.value_or(side), given.right.value_or(side));
}

Mask build_causal_blockwise(const MaskArguments& given) {
  const Numbers documents = documents_of(given);
  return masks::causal_blockwise(documents, tokens_or(given, sum(documents)));
}

Mask build_prefix_lm_document(const MaskArguments& given) {
  const Numbers documents = documents_of(given);
  return masks::prefix_lm_document(documents, prefixes_of(given, documents), tokens_or(given, sum(documents)));
}

Mask build_prefix_lm_causal(const MaskArguments& given) {
  const std::int64_t tokens = tokens_of(given);
  return masks::prefix_lm_causal(tokens, given.prefix.value_or(tokens / 2));
}

Mask build_qk_sparse_segments(const MaskArguments& given) {
  return masks::qk_sparse_segments(tokens_of(given), spans_of(given));
}

Mask build_hash_sparse_sorted(const MaskArguments& given) {
  const std::int64_t buckets = buckets_of(given);
  return masks::hash_sparse_sorted(random_buckets(tokens_of(given), buckets, seed_of(given)),
                                   random_buckets(tokens_of(given), buckets, seed_of(given) + 1));
}

Mask build_random_eviction(const MaskArguments& given) {
  const std::int64_t heads = heads_of(given);
  return masks::random_eviction(tokens_of(given), random_evictions(tokens_of(given), heads, seed_of(given)), heads);
}

Mask build_tree(const MaskArguments& given) {
  if (given.parents.has_value() != given.lengths.has_value()) {
    throw Error(Status::invalid_argument, "tree: --parents and --lengths go together, one number per node in each");
  }
  if (!given.parents) {
    const auto [parents, lengths] = default_tree(tokens_of(given));
    return masks::tree(parents, lengths, tokens_of(given)).mask;
  }
  const Numbers lengths = parse_lengths(*given.lengths, "lengths");
  return masks::tree(parse_numbers(*given.parents, "parents"), lengths, tokens_or(given, sum(lengths))).mask;
}

Mask build_bidirectional_spans(const MaskArguments& given) {
  return masks::bidirectional_spans(tokens_of(given), spans_of(given));
}

Mask build_block_diffusion(const MaskArguments& given) {
  const std::int64_t tokens = tokens_of(given);
  if (tokens % 2 != 0) refuse_option("tokens", std::to_string(tokens), "an even number: the noisy and the clean half");
  return masks::block_diffusion(tokens / 2, given.block.value_or(default_window(tokens)));
}

// clang-format off: one line a family
const std::vector<MaskFamily> kIntervalFamilies = {
    {"full", "every row sees every column", {"columns"}, build_full},
    {"causal", "a row sees the columns up to its own", {"columns"}, build_causal},
    {"sliding_window", "causal, the last --window columns", {"columns", "window"}, build_sliding_window},
    {"window", "--left and --right columns beside self", {"columns", "left", "right"}, build_window},
    {"causal_document", "documents, each causal", {"documents"}, build_causal_document},
    {"document", "documents, each both ways", {"documents"}, build_document},
    {"sliding_window_document",
     "a window inside causal documents",
     {"documents", "window"},
     build_sliding_window_document},
    {"shared_question", "answers see their question and themselves", {"documents"}, build_shared_question},
    {"global_sliding_window",
     "a window, and tokens that all see",
     {"globals", "left", "right"},
     build_global_sliding_window},
    {"causal_blockwise", "causal documents, the last sees all", {"documents"}, build_causal_blockwise},
    {"prefix_lm_document",
     "documents: prefix both ways, rest causal",
     {"documents", "prefixes"},
     build_prefix_lm_document},
    {"prefix_lm_causal", "prefix visible to all, rest causal", {"prefix"}, build_prefix_lm_causal},
    {"qk_sparse_segments", "causal without the --spans", {"spans"}, build_qk_sparse_segments},
    {"hash_sparse_sorted", "tokens sorted into random --buckets", {"buckets", "seed"}, build_hash_sparse_sorted},
    {"random_eviction", "causal, keys dropped at random rows", {"heads", "seed"}, build_random_eviction},
    {"tree", "nodes see their ancestors and themselves", {"parents", "lengths"}, build_tree},
    {"bidirectional_spans", "causal, --spans see themselves both ways", {"spans"}, build_bidirectional_spans},
    {"block_diffusion", "noisy half beside clean half, in blocks", {"block"}, build_block_diffusion},
};
// clang-format on

std::vector<MaskFamily> all_families() {
  std::vector<MaskFamily> all = kIntervalFamilies;
  const std::vector<MaskFamily>& sparse = sparse_families();
  all.insert(all.end(), sparse.begin(), sparse.end());
  return all;
}

template <class Value>
void note(std::vector<std::string>& names, const char* name, const std::optional<Value>& value) {
  if (value) names.emplace_back(name);
}

std::vector<std::string> given_options(const MaskArguments& given) {
  std::vector<std::string> names;
  note(names, "columns", given.columns);
  note(names, "window", given.window);
  note(names, "left", given.left);
  note(names, "right", given.right);
  note(names, "globals", given.globals);
  note(names, "prefix", given.prefix);
  note(names, "block", given.block);
  note(names, "buckets", given.buckets);
  note(names, "heads", given.heads);
  note(names, "seed", given.seed);
  note(names, "documents", given.documents);
  note(names, "prefixes", given.prefixes);
  note(names, "parents", given.parents);
  note(names, "lengths", given.lengths);
  note(names, "spans", given.spans);
  note(names, "dilation", given.dilation);
  note(names, "stride", given.stride);
  note(names, "summary", given.summary);
  note(names, "window-blocks", given.window_blocks);
  note(names, "global-blocks", given.global_blocks);
  note(names, "random-blocks", given.random_blocks);
  note(names, "positions", given.positions);
  note(names, "dropped", given.dropped);
  note(names, "grid", given.grid);
  note(names, "kernel-size", given.kernel_size);
  note(names, "candidates", given.candidates);
  note(names, "sight", given.sight);
  note(names, "edges", given.edges);
  return names;
}

void check_options(const MaskFamily& family, const MaskArguments& given) {
  for (const std::string& option : given_options(given)) {
    if (std::find(family.options.begin(), family.options.end(), option) != family.options.end()) continue;
    throw Error(Status::invalid_argument, family.name + " takes --tokens, --" + join(family.options, ", --") + "; --" +
                                              option + " means nothing to it");
  }
}

/// A lowered mask takes 16 bytes per column and head, and is copied once or twice while it is built.
void check_size(const MaskArguments& given) {
  const auto columns = static_cast<double>(std::max(tokens_of(given), columns_of(given)));
  check_memory(64 * columns * static_cast<double>(given.heads.value_or(1)), "holding the mask", "give fewer --tokens");
}

}  // namespace

const std::vector<MaskFamily>& mask_families() {
  static const std::vector<MaskFamily> all = all_families();
  return all;
}

const MaskFamily& find_family(const std::string& name) {
  std::vector<std::string> names;
  for (const MaskFamily& family : mask_families()) {
    if (family.name == name) return family;
    names.push_back(family.name);
  }
  const std::string nearest = nearest_name(name, names);
  throw Error(Status::invalid_argument, "no mask family \"" + name + "\"" +
                                            (nearest.empty() ? "; the" : "; did you mean " + nearest + "? The") +
                                            " families are " + join(names));
}

void add_mask_options(Subcommand& sub, MaskArguments& arguments) {
  const std::string group = kFamilyGroup;
  const auto add = [&](const std::string& name, auto& value, const std::string& text) {
    sub.option("--" + name, value, text).group(group);
  };
  add("tokens", arguments.tokens, "Rows, and columns unless --columns is given");
  add("columns", arguments.columns, "Key columns, where they may differ from the rows");
  add("documents", arguments.documents, "Document lengths, such as 4,3,3; of shared_question 4:3:3,6:2:2");
  add("prefixes", arguments.prefixes, "Prefix lengths, one a document");
  add("prefix", arguments.prefix, "Prefix length of prefix_lm_causal; columns before a speculation tree");
  add("window", arguments.window, "Columns a row sees, itself included");
  add("left", arguments.left, "Columns before self");
  add("right", arguments.right, "Columns after self");
  add("globals", arguments.globals, "First tokens, which see and are seen by all");
  add("spans", arguments.spans, "Half-open ranges of tokens, such as 2:5,6:8");
  add("parents", arguments.parents, "Parent of each node of a tree, -1 for a root");
  add("lengths", arguments.lengths, "Tokens of each node of a tree");
  add("block", arguments.block, "Block size of block_diffusion and big_bird, or of --block-map");
  add("buckets", arguments.buckets, "Buckets of hash_sparse_sorted and scfa_hash_sparse");
  add("heads", arguments.heads, "Mask heads of masks that differ from head to head");
  add("dilation", arguments.dilation, "Distance between two columns of a dilated window or neighbourhood");
  add("positions", arguments.positions, "Tokens that see and are seen by all, such as 0,7,31");
  add("window-blocks", arguments.window_blocks, "Blocks on either side of its own that a block sees");
  add("global-blocks", arguments.global_blocks, "First blocks, which see and are seen by all");
  add("random-blocks", arguments.random_blocks, "Random blocks of a row of blocks");
  add("grid", arguments.grid, "Lengths of the axes of a neighbourhood, such as 8,16");
  add("kernel-size", arguments.kernel_size, "Tokens that a token sees along each axis, such as 3,5");
  add("stride", arguments.stride, "Columns of one factor");
  add("summary", arguments.summary, "Last columns of a block that later blocks see");
  add("dropped", arguments.dropped, "Rows that see nothing, such as 3,4,9");
  add("candidates", arguments.candidates, "Candidates of each MEDUSA head, such as 4,3,2");
  add("sight", arguments.sight, "What a node sees: ancestors, or only its parent");
  add("edges", arguments.edges, "Edges of a graph, such as 0:1,1:4");
  add("seed", arguments.seed, "Seed of the random masks, or of --dropout");
}

Mask build_mask(const std::string& name, const MaskArguments& arguments) {
  const MaskFamily& family = find_family(name);
  check_options(family, arguments);
  check_size(arguments);
  return family.build(arguments);
}

}  // namespace flashmask::cli
