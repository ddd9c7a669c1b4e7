// SPDX-License-Identifier: Apache-2.0
#include "mask/builders/spans.h"

#include <algorithm>

#include "base/checks.h"
#include "mask/builders/visible_rows.h"

namespace flashmask::masks {
namespace {

std::string text(const Span& span) { return "tokens [" + grouped(span.begin) + ", " + grouped(span.end) + ")"; }

void check_span(const std::string& argument, const Span& span, std::int64_t tokens) {
  if (span.begin < 0 || span.begin > span.end || span.end > tokens) {
    refuse(argument + " is " + text(span) + "; give 0 <= begin <= end <= tokens, which is " + grouped(tokens));
  }
}

void check_disjoint(const std::string& argument, const Span& earlier, const Span& later) {
  if (later.begin < earlier.end) {
    refuse(argument + " " + text(earlier) + " and " + text(later) + " overlap; give disjoint ones");
  }
}

}  // namespace

std::vector<Span> sorted_spans(const std::string& builder, const std::string& argument, std::span<const Span> spans,
                               std::int64_t tokens) {
  const std::string name = builder + ": " + argument;
  std::vector<Span> sorted;
  for (std::size_t k = 0; k < spans.size(); ++k) {
    check_span(name + "[" + std::to_string(k) + "]", spans[k], tokens);
    if (spans[k].begin < spans[k].end) sorted.push_back(spans[k]);
  }
  std::sort(sorted.begin(), sorted.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (std::size_t k = 1; k < sorted.size(); ++k) check_disjoint(name, sorted[k - 1], sorted[k]);
  return sorted;
}

Mask bidirectional_spans(std::int64_t tokens, Elements<Span> spans) {
  IntervalMask mask = all_visible("bidirectional_spans", tokens);
  for (std::int64_t j = 0; j < tokens; ++j) show_column(mask, j, {j, tokens});
  for (const Span& span : sorted_spans("bidirectional_spans", "spans", spans, tokens)) {
    for (std::int64_t j = span.begin; j < span.end; ++j) show_column(mask, j, {span.begin, tokens});
  }
  return Mask(std::move(mask), "bidirectional_spans(" + counted(spans.size(), "span") + ")");
}

Mask qk_sparse_segments(std::int64_t tokens, Elements<Span> dropped) {
  IntervalMask mask = all_visible("qk_sparse_segments", tokens);
  for (std::int64_t j = 0; j < tokens; ++j) show_column(mask, j, {j, tokens});
  for (const Span& span : sorted_spans("qk_sparse_segments", "dropped", dropped, tokens)) {
    for (std::int64_t j = span.begin; j < span.end; ++j) show_column(mask, j, {span.end, tokens});
  }
  return Mask(std::move(mask), "qk_sparse_segments(" + counted(dropped.size(), "segment") + ")");
}

}  // namespace flashmask::masks
