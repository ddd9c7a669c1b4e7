// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/packing.h"

namespace flashmask::masks {
namespace {

/// Packs documents that have separate rows and columns; visible(rows, columns, j) returns the rows that see column j.
template <typename Visible>
Mask pack_both(const std::string& builder, Lengths query_lengths, Lengths key_lengths, const Visible& visible) {
  if (query_lengths.size() != key_lengths.size()) {
    refuse(builder + ": " + counted(query_lengths.size(), "query length") + " and " +
           counted(key_lengths.size(), "key length") + "; give both lengths of every document");
  }
  IntervalMask mask = all_visible(builder, sum_of(builder, "query_lengths", query_lengths),
                                  sum_of(builder, "key_lengths", key_lengths));
  Span rows, columns;
  for (std::size_t k = 0; k < key_lengths.size(); ++k) {
    rows = {rows.end, rows.end + query_lengths[k]};
    columns = {columns.end, columns.end + key_lengths[k]};
    for (std::int64_t j = columns.begin; j < columns.end; ++j) show_column(mask, j, visible(rows, columns, j));
  }
  return Mask(std::move(mask), builder + "(" + counted(key_lengths.size(), "document") + ")");
}

}  // namespace

Mask causal_document(Lengths documents, std::int64_t tokens) {
  return pack("causal_document", documents, tokens, [](const Document& d, std::int64_t j) { return Span{j, d.end}; });
}

Mask causal_document(Lengths query_lengths, Lengths key_lengths) {
  return pack_both("causal_document", query_lengths, key_lengths, [](Span rows, Span columns, std::int64_t j) {
    return Span{std::clamp(rows.end - (columns.end - j), rows.begin, rows.end), rows.end};
  });
}

Mask document(Lengths documents, std::int64_t tokens) {
  return pack("document", documents, tokens, [](const Document& d, std::int64_t) { return Span{d.begin, d.end}; });
}

Mask document(Lengths query_lengths, Lengths key_lengths) {
  return pack_both("document", query_lengths, key_lengths, [](Span rows, Span, std::int64_t) { return rows; });
}

Mask sliding_window_document(Lengths documents, std::int64_t tokens, std::int64_t window) {
  check_window("sliding_window_document", window);
  return pack("sliding_window_document", documents, tokens, [window](const Document& d, std::int64_t j) {
    return Span{j, j + std::min(window, d.end - j)};
  });
}

Mask causal_blockwise(Lengths documents, std::int64_t tokens) {
  IntervalMask mask = all_visible("causal_blockwise", tokens);
  const std::int64_t used = check_fit("causal_blockwise", "documents", documents, tokens);
  const std::int64_t last = documents.empty() ? 0 : used - documents.back();
  std::int64_t begin = 0;
  for (const std::int64_t length : documents) {
    const std::int64_t end = begin + length;
    for (std::int64_t j = begin; j < end; ++j) hide_column(mask, j, {0, j}, {end, last});
    begin = end;
  }
  hide_columns_from(mask, used);
  Mask unpadded = Mask(std::move(mask), "causal_blockwise(" + counted(documents.size(), "document") + ")");
  if (used == tokens) return unpadded;
  // Padding rows are a third range in most columns; lowering decides whether the mask still fits intervals.
  return unpadded & document({used}, tokens);
}

}  // namespace flashmask::masks
