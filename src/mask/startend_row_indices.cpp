// SPDX-License-Identifier: Apache-2.0
#include "flashmask/startend_row_indices.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/checks.h"
#include "mask/row_indices.h"

namespace flashmask {
namespace {

constexpr const char* kImporter = "from_startend_row_indices";

}  // namespace

void check_row_indices(const MaskShape& shape, int vectors, bool causal) {
  const bool known = causal ? vectors == 1 || vectors == 2 : vectors == 2 || vectors == 4;
  if (!known) {
    refuse(std::string(kImporter) + ": vectors is " + std::to_string(vectors) + "; give " +
           (causal ? "1 (LTS) or 2 (LTS, LTE) with causal" : "2 (LTS, UTE) or 4 (LTS, LTE, UTS, UTE) without causal"));
  }
  check_shape(kImporter, shape);
}

namespace {

void check_values(std::size_t count, const MaskShape& shape, int vectors, bool causal) {
  check_row_indices(shape, vectors, causal);
  const std::size_t expected = element_count(kImporter, {shape.batch, shape.heads, shape.columns, vectors});
  if (count != expected) {
    refuse(std::string(kImporter) + ": values has " + counted(count, "value") +
           " but batch x heads x columns x vectors is " + grouped(static_cast<std::int64_t>(expected)) +
           "; give int32 [batch, heads, columns, vectors]");
  }
}

/// Returns the end of the rows [0, end) that causal masking hides in a column.
std::int32_t causal_end(const MaskShape& shape, std::int64_t column) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(column + shape.rows - shape.columns, 0, shape.rows));
}

/// The two masked ranges that one column's vectors give; missing vectors mean LTE = rows, UTS = 0.
struct Ranges {
  Interval lower, upper;
};

Ranges decode(const std::int32_t* vectors, int count, bool causal, std::int32_t rows, std::int32_t diagonal) {
  if (causal) return {{vectors[0], count == 2 ? vectors[1] : rows}, {0, diagonal}};
  if (count == 2) return {{vectors[0], rows}, {0, vectors[1]}};
  return {{vectors[0], vectors[1]}, {vectors[2], vectors[3]}};
}

/// Returns the range that a column masks besides rows [0, diagonal); nullopt if these are not masked or two are left.
std::optional<Interval> beside_diagonal(Interval first, Interval second, std::int32_t diagonal) {
  const bool diagonal_masked = diagonal == 0 || (first.begin == 0 && first.end >= diagonal);
  if (!diagonal_masked) return std::nullopt;
  first.begin = std::max(first.begin, diagonal);
  if (!first.empty() && !second.empty()) return std::nullopt;
  return first.empty() ? second : first;
}

/// Splits a column's ranges for the four vectors: a single range is the upper one if it begins with row 0 and leaves
/// the last row visible.
Ranges split(Interval first, Interval second, std::int32_t rows) {
  if (first.empty()) return {{rows, rows}, {0, 0}};
  if (!second.empty()) return {second, first};
  const bool upper = first.begin == 0 && first.end < rows;
  return upper ? Ranges{{rows, rows}, first} : Ranges{first, {0, 0}};
}

/// One way to write a column; `write` returns whether it can write that column.
struct Encoding {
  int vectors;
  bool causal;
  bool (*write)(Interval first, Interval second, std::int32_t rows, std::int32_t diagonal, std::int32_t* out);
};

bool write_causal_end(Interval first, Interval second, std::int32_t rows, std::int32_t diagonal, std::int32_t* out) {
  const std::optional<Interval> rest = beside_diagonal(first, second, diagonal);
  if (!rest || (!rest->empty() && rest->end != rows)) return false;
  out[0] = rest->empty() ? rows : rest->begin;
  return true;
}

bool write_causal_range(Interval first, Interval second, std::int32_t rows, std::int32_t diagonal, std::int32_t* out) {
  const std::optional<Interval> rest = beside_diagonal(first, second, diagonal);
  if (!rest) return false;
  out[0] = rest->empty() ? rows : rest->begin;
  out[1] = rest->empty() ? rows : rest->end;
  return true;
}

bool write_two_ends(Interval first, Interval second, std::int32_t rows, std::int32_t, std::int32_t* out) {
  const auto [lower, upper] = split(first, second, rows);
  out[0] = lower.begin;
  out[1] = upper.end;
  return lower.end == rows && upper.begin == 0;
}

bool write_two_ranges(Interval first, Interval second, std::int32_t rows, std::int32_t, std::int32_t* out) {
  const auto [lower, upper] = split(first, second, rows);
  out[0] = lower.begin;
  out[1] = lower.end;
  out[2] = upper.begin;
  out[3] = upper.end;
  return true;
}

/// Shortest first; the last one can write any column.
constexpr std::array<Encoding, 4> encodings = {{{1, true, write_causal_end},
                                                {2, true, write_causal_range},
                                                {2, false, write_two_ends},
                                                {4, false, write_two_ranges}}};

/// Writes every column, or gives up at the first that the encoding cannot write.
bool write(const Encoding& encoding, const IntervalMask& mask, std::vector<std::int32_t>& values) {
  const MaskShape& shape = mask.shape();
  const auto rows = static_cast<std::int32_t>(shape.rows);
  const auto vectors = static_cast<std::size_t>(encoding.vectors);
  const auto columns = static_cast<std::size_t>(shape.columns);
  const std::size_t all_columns = element_count("to_startend_row_indices", {shape.batch, shape.heads, shape.columns});
  values = zeros<std::int32_t>("to_startend_row_indices", all_columns * vectors);
  for (std::size_t i = 0; i < all_columns; ++i) {
    const std::int32_t diagonal = causal_end(shape, static_cast<std::int64_t>(i % columns));
    if (!encoding.write(mask.first(i), mask.second(i), rows, diagonal, &values[i * vectors])) return false;
  }
  return true;
}

}  // namespace

Mask from_startend_row_indices(std::span<const std::int32_t> values, const MaskShape& shape, int vectors, bool causal) {
  check_values(values.size(), shape, vectors, causal);
  IntervalMask mask(shape);
  const auto rows = static_cast<std::int32_t>(shape.rows);
  const auto step = static_cast<std::size_t>(vectors);
  const auto columns = static_cast<std::size_t>(shape.columns);
  for (std::size_t i = 0; i < values.size() / step; ++i) {
    const std::int32_t diagonal = causal ? causal_end(shape, static_cast<std::int64_t>(i % columns)) : 0;
    const auto [lower, upper] = decode(&values[i * step], vectors, causal, rows, diagonal);
    mask.set(i, lower, upper);
  }
  return Mask(std::move(mask),
              std::string("startend_row_indices(") + (causal ? "causal, " : "") + counted(step, "vector") + ")");
}

StartEndRowIndices to_startend_row_indices(const IntervalMask& mask) {
  StartEndRowIndices indices{.values = {}, .shape = mask.shape(), .vectors = 0, .causal = false};
  for (const Encoding& encoding : encodings) {
    if (!write(encoding, mask, indices.values)) continue;
    indices.vectors = encoding.vectors;
    indices.causal = encoding.causal;
    break;
  }
  return indices;
}

}  // namespace flashmask
