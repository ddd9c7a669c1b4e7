// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "flashmask/builders.h"

/// Defaults for a mask family when only its size is given, so that every family can be drawn and timed at any size.
namespace flashmask::cli {

inline constexpr std::int64_t kDefaultTokens = 32;

/// Five documents of different lengths.
std::vector<std::int64_t> default_documents(std::int64_t tokens);

/// Prefixes of a third of each document.
std::vector<std::int64_t> default_prefixes(const std::vector<std::int64_t>& documents);

/// Two questions, with two and three answers.
std::vector<masks::SharedQuestion> default_questions(std::int64_t tokens);

/// A sixteenth of the tokens, at least 4, never more than the tokens.
std::int64_t default_window(std::int64_t tokens);
std::int64_t default_globals(std::int64_t tokens);

/// The second and the fourth fifths of the tokens.
std::vector<masks::Span> default_spans(std::int64_t tokens);

/// Two conversations that branch: parents and lengths.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> default_tree(std::int64_t tokens);

/// Two or three axes of about the same length whose product is exactly the number of tokens, the shorter first.
std::vector<std::int64_t> default_grid(std::int64_t tokens, std::int64_t axes);

/// About the square root of the tokens.
std::int64_t default_stride(std::int64_t tokens);

/// Two candidates per head, with as many heads as the tokens have room for.
std::vector<std::int64_t> default_candidates(std::int64_t tokens);

/// A binary tree in breadth-first order.
std::vector<std::int64_t> default_parents(std::int64_t tokens);

/// A ring in which each node also has an edge to a random node.
std::vector<VisiblePair> random_ring(std::int64_t nodes, std::uint64_t seed);

/// A random quarter of the tokens, ascending.
std::vector<std::int64_t> random_quarter(std::int64_t tokens, std::uint64_t seed);

/// Puts every token in a random bucket and sorts by bucket, then position.
std::vector<masks::HashedToken> random_buckets(std::int64_t tokens, std::int64_t buckets, std::uint64_t seed);

/// A random bucket for every token of every head: [heads, tokens].
std::vector<std::int64_t> buckets_in_order(std::int64_t tokens, std::int64_t heads, std::int64_t buckets,
                                           std::uint64_t seed);

/// About half of the tokens of every head kept, at random: [heads, tokens].
std::vector<std::uint8_t> random_half(std::int64_t tokens, std::int64_t heads, std::uint64_t seed);

/// For every token the row that evicts it: from the middle row on, each row drops one random key that is still kept;
/// `tokens` if none does. Shape [heads, tokens].
std::vector<std::int64_t> random_evictions(std::int64_t tokens, std::int64_t heads, std::uint64_t seed);

}  // namespace flashmask::cli
