// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <tuple>

#include "mask/builders/visible_columns.h"
#include "mask/cell_rows.h"
#include "mask/cell_words.h"

namespace flashmask::masks {
namespace {

/// Returns the values of one head, one per token.
template <class Value>
const Value* head_values(std::span<const Value> values, std::int64_t head, std::int64_t tokens) {
  return values.data() + head * tokens;
}

std::int64_t tokens_of(const std::string& builder, const std::string& argument, std::size_t values,
                       std::int64_t heads) {
  if (static_cast<std::int64_t>(values) % heads != 0) {
    refuse(builder + ": " + argument + " has " + counted(values, "value") + " for " + grouped(heads) +
           " heads; give as many for every head");
  }
  return static_cast<std::int64_t>(values) / heads;
}

MaskShape check_shape(const std::string& builder, const std::string& query_argument, std::size_t queries,
                      const std::string& key_argument, std::size_t keys, std::int64_t heads) {
  check_at_least(builder, "heads", heads, 1, "the number of mask heads");
  check_size(builder, "heads", heads);
  return shape_of(builder, heads, tokens_of(builder, query_argument, queries, heads),
                  tokens_of(builder, key_argument, keys, heads));
}

/// Consecutive keys of one bucket.
struct BucketRun {
  std::int64_t bucket = 0;
  Span keys;
};

/// Returns the runs of one head, sorted by bucket, then by position.
std::vector<BucketRun> bucket_runs(const std::int64_t* buckets, std::int64_t keys) {
  std::vector<BucketRun> runs;
  for (std::int64_t j = 0; j < keys; ++j) {
    if (j == 0 || buckets[j] != runs.back().bucket) runs.push_back({buckets[j], {j, j}});
    runs.back().keys.end = j + 1;
  }
  std::sort(runs.begin(), runs.end(), [](const BucketRun& a, const BucketRun& b) {
    return std::tie(a.bucket, a.keys.begin) < std::tie(b.bucket, b.keys.begin);
  });
  return runs;
}

/// Packs flags: bit j of the result says whether key j is kept.
std::vector<std::uint64_t> kept_words(const std::uint8_t* kept, std::int64_t keys) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>((keys + kCellSize - 1) / kCellSize));
  for (std::int64_t j = 0; j < keys; ++j) {
    words[static_cast<std::size_t>(j / kCellSize)] |= std::uint64_t{kept[j] != 0} << j % kCellSize;
  }
  return words;
}

}  // namespace

Mask scfa_hash_sparse(Elements<std::int64_t> query_buckets, Elements<std::int64_t> key_buckets, std::int64_t heads) {
  const MaskShape shape =
      check_shape("scfa_hash_sparse", "query_buckets", query_buckets.size(), "key_buckets", key_buckets.size(), heads);
  std::vector<std::vector<BucketRun>> runs;
  for (std::int64_t head = 0; head < heads; ++head) {
    runs.push_back(bucket_runs(head_values(key_buckets, head, shape.columns), shape.columns));
  }
  const auto visible = [&](std::int64_t, std::int64_t head, std::int64_t row, std::vector<Span>& out) {
    const std::int64_t self = row + shape.columns - shape.rows;
    const std::int64_t bucket = head_values(query_buckets, head, shape.rows)[row];
    const auto& all = runs[static_cast<std::size_t>(head)];
    out.clear();
    for (auto run = std::lower_bound(all.begin(), all.end(), bucket,
                                     [](const BucketRun&a, std::int64_t value) { return a.bucket < value; });
         run != all.end() && run->bucket == bucket && run->keys.begin <= self; ++run) {
      out.push_back({run->keys.begin, std::min(run->keys.end, self + 1)});
    }
  };
  return {from_visible_columns(shape, visible),
          "scfa_hash_sparse(" + counted(static_cast<std::size_t>(heads), "head") + ")"};
}

Mask scfa_qk_sparse(Elements<std::uint8_t> kept_queries, Elements<std::uint8_t> kept_keys, std::int64_t heads) {
  const MaskShape shape =
      check_shape("scfa_qk_sparse", "kept_queries", kept_queries.size(), "kept_keys", kept_keys.size(), heads);
  std::vector<std::vector<std::uint64_t>> keys;
  for (std::int64_t head = 0; head < heads; ++head) {
    keys.push_back(kept_words(head_values(kept_keys, head, shape.columns), shape.columns));
  }
  const auto fill = [&](std::int64_t, std::int64_t head, std::int64_t cell_row, CellRows& out) {
    const std::int64_t row0 = cell_row * kCellSize;
    const std::int64_t rows = std::min<std::int64_t>(kCellSize, shape.rows - row0);
    const std::int64_t seen = std::min(row0 + rows + shape.columns - shape.rows, shape.columns);
    std::array<std::uint64_t, kCellSize> words{};
    for (std::int64_t column = 0; column < seen; column += kCellSize) {
      const std::uint64_t kept = keys[static_cast<std::size_t>(head)][static_cast<std::size_t>(column / kCellSize)];
      for (std::int64_t r = 0; r < rows; ++r) {
        const bool keep_row = head_values(kept_queries, head, shape.rows)[row0 + r] != 0;
        const std::int64_t self = row0 + r + shape.columns - shape.rows;
        words[static_cast<std::size_t>(r)] = keep_row ? kept & low_bits(self + 1 - column) : 0;
      }
      out.add(static_cast<std::int32_t>(column / kCellSize), words.data(), rows, shape.columns - column);
    }
  };
  return {build_bits(shape, default_executor(), [&]() -> FillCells { return fill; }),
          "scfa_qk_sparse(" + counted(static_cast<std::size_t>(heads), "head") + ")"};
}

}  // namespace flashmask::masks
