// SPDX-License-Identifier: Apache-2.0
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

/// Two axes (three) of about the same length that hold the tokens exactly, the shorter first.
std::vector<std::int64_t> default_grid(std::int64_t tokens, std::int64_t axes);

/// About the square root of the tokens.
std::int64_t default_stride(std::int64_t tokens);

/// Two candidates a head, as many heads as the tokens hold.
std::vector<std::int64_t> default_candidates(std::int64_t tokens);

/// A binary tree in breadth-first order.
std::vector<std::int64_t> default_parents(std::int64_t tokens);

/// A ring whose nodes have a random friend each.
std::vector<VisiblePair> random_ring(std::int64_t nodes, std::uint64_t seed);

/// A random quarter of the tokens, ascending.
std::vector<std::int64_t> random_quarter(std::int64_t tokens, std::uint64_t seed);

/// Every token in a random bucket, sorted by bucket, then position.
std::vector<masks::HashedToken> random_buckets(std::int64_t tokens, std::int64_t buckets, std::uint64_t seed);

/// A random bucket for every token of every head: [heads, tokens].
std::vector<std::int64_t> buckets_in_order(std::int64_t tokens, std::int64_t heads, std::int64_t buckets,
                                           std::uint64_t seed);

/// About half of the tokens of every head kept, at random: [heads, tokens].
std::vector<std::uint8_t> random_half(std::int64_t tokens, std::int64_t heads, std::uint64_t seed);

/// From the middle row on, every row drops one key that is still there: [heads, tokens].
std::vector<std::int64_t> random_evictions(std::int64_t tokens, std::int64_t heads, std::uint64_t seed);

}  // namespace flashmask::cli
