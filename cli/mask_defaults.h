#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "flashmask/builders.h"

/// What a mask family is given when only its size is said, so that every family can be drawn and timed at any size.
namespace flashmask::cli {

inline constexpr std::int64_t kDefaultTokens = 32;

/// Five documents of different lengths.
std::vector<std::int64_t> default_documents(std::int64_t tokens);

/// A third of each document.
std::vector<std::int64_t> default_prefixes(const std::vector<std::int64_t>& documents);

/// Documents of half a question and two answers.
std::vector<masks::SharedQuestion> default_questions(std::int64_t tokens);

/// A sixteenth of the tokens, at least 4, never more than the tokens.
std::int64_t default_window(std::int64_t tokens);
std::int64_t default_globals(std::int64_t tokens);

/// The second and the fourth fifth of the tokens.
std::vector<masks::Span> default_spans(std::int64_t tokens);

/// Two conversations that branch: parents and lengths.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> default_tree(std::int64_t tokens);

/// Every token in a random bucket, sorted by bucket, then position.
std::vector<masks::HashedToken> random_buckets(std::int64_t tokens, std::int64_t buckets, std::uint64_t seed);

/// From the middle row on, every row drops one key that is still there: [heads, tokens].
std::vector<std::int64_t> random_evictions(std::int64_t tokens, std::int64_t heads, std::uint64_t seed);

}  // namespace flashmask::cli
