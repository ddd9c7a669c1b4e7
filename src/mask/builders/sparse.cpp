// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "mask/builders/visible_columns.h"
#include "mask/builders/visible_rows.h"

namespace flashmask::masks {
namespace {

bool before(const HashedToken& a, const HashedToken& b) {
  return std::tie(a.bucket, a.position) < std::tie(b.bucket, b.position);
}

[[noreturn]] void refuse_order(const std::string& argument, std::size_t k, const HashedToken& token) {
  refuse("hash_sparse_sorted: " + argument + "[" + std::to_string(k) + "] (bucket " + grouped(token.bucket) +
         ", position " + grouped(token.position) + ") belongs before the one it follows; sort " + argument +
         " by bucket, then position");
}

void check_sorted(const std::string& argument, std::span<const HashedToken> tokens) {
  for (std::size_t k = 1; k < tokens.size(); ++k) {
    if (before(tokens[k], tokens[k - 1])) refuse_order(argument, k, tokens[k]);
  }
}

void check_evictions(std::int64_t tokens, std::span<const std::int64_t> evicted_at, std::int64_t heads) {
  const std::size_t expected = element_count("random_eviction", {heads, tokens});
  if (evicted_at.size() != expected) {
    refuse("random_eviction: evicted_at has " + counted(evicted_at.size(), "row") + " but heads x tokens is " +
           grouped(static_cast<std::int64_t>(expected)) + "; give the row of every head's every column");
  }
  for (std::size_t k = 0; k < evicted_at.size(); ++k) {
    if (evicted_at[k] < 0 || evicted_at[k] > tokens) {
      refuse("random_eviction: evicted_at[" + std::to_string(k) + "] is " + grouped(evicted_at[k]) +
             "; give a row from 0 to tokens, which is " + grouped(tokens) + " and means never");
    }
  }
}

}  // namespace

Mask global_sliding_window(std::int64_t tokens, std::int64_t globals, std::int64_t left, std::int64_t right) {
  IntervalMask mask = all_visible("global_sliding_window", tokens);
  if (globals < 0 || globals > tokens) {
    refuse("global_sliding_window: globals is " + grouped(globals) + "; give a number from 0 to tokens, which is " +
           grouped(tokens));
  }
  check_neighbours("global_sliding_window", "left", left);
  check_neighbours("global_sliding_window", "right", right);
  const std::int64_t before_self = std::min(left, tokens);
  const std::int64_t after_self = std::min(right, tokens);
  for (std::int64_t j = globals; j < tokens; ++j) {
    hide_column(mask, j, {globals, j - after_self}, {j + before_self + 1, tokens});
  }
  return Mask(std::move(mask),
              "global_sliding_window(" + grouped(globals) + ", " + grouped(left) + ", " + grouped(right) + ")");
}

Mask hash_sparse_sorted(Elements<HashedToken> queries, Elements<HashedToken> keys) {
  check_sorted("queries", queries);
  check_sorted("keys", keys);
  IntervalMask mask = all_visible("hash_sparse_sorted", static_cast<std::int64_t>(queries.size()),
                                  static_cast<std::int64_t>(keys.size()));
  std::size_t first = 0;
  std::size_t bucket_end = 0;
  for (std::size_t j = 0; j < keys.size(); ++j) {
    while (first < queries.size() && before(queries[first], keys[j])) ++first;
    while (bucket_end < queries.size() && queries[bucket_end].bucket <= keys[j].bucket) ++bucket_end;
    show_column(mask, static_cast<std::int64_t>(j),
                {static_cast<std::int64_t>(first), static_cast<std::int64_t>(bucket_end)});
  }
  return Mask(std::move(mask), "hash_sparse_sorted");
}

Mask random_eviction(std::int64_t tokens, Elements<std::int64_t> evicted_at, std::int64_t heads) {
  check_size("random_eviction", "tokens", tokens);
  check_size("random_eviction", "heads", heads);
  check_evictions(tokens, evicted_at, heads);
  IntervalMask mask({.batch = 1, .heads = heads, .rows = tokens, .columns = tokens});
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t j = 0; j < tokens; ++j) {
      const std::size_t index = mask.index(0, head, j);
      mask.set(index, clipped({0, j}, tokens), clipped({evicted_at[index], tokens}, tokens));
    }
  }
  return Mask(std::move(mask), "random_eviction(" + counted(static_cast<std::size_t>(heads), "head") + ")");
}

}  // namespace flashmask::masks
