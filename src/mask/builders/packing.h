// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/checks.h"
#include "mask/builders/visible_rows.h"

/// Documents packed one after another into a sequence, with padding at the end.
namespace flashmask::masks {

/// The tokens of one document.
struct Document {
  std::size_t number = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Returns the sum of the lengths; throws unless each is a legal size.
std::int64_t sum_of(const std::string& builder, const std::string& argument, Lengths lengths);

/// Returns sum_of(); throws if it exceeds `tokens`.
std::int64_t check_fit(const std::string& builder, const std::string& argument, Lengths lengths, std::int64_t tokens);

/// Builds a mask: visible(document, column) returns the rows that see a column, which must lie in the document.
template <typename Visible>
Mask pack(const std::string& builder, Lengths documents, std::int64_t tokens, const Visible& visible) {
  IntervalMask mask = all_visible(builder, tokens);
  const std::int64_t used = check_fit(builder, "documents", documents, tokens);
  Document document;
  for (; document.number < documents.size(); ++document.number) {
    document.end = document.begin + documents[document.number];
    for (std::int64_t j = document.begin; j < document.end; ++j) show_column(mask, j, visible(document, j));
    document.begin = document.end;
  }
  hide_columns_from(mask, used);
  return Mask(std::move(mask), builder + "(" + counted(documents.size(), "document") + ")");
}

}  // namespace flashmask::masks
