// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "flashmask/span.h"

namespace flashmask {

/// Some tokens of a sequence, as disjoint spans, and their new numbers: 0, 1, … in the order of the spans. Where they
/// are cut into units, the numbers of each span begin at a multiple of `unit`, and the numbers between are padding.
class ChosenTokens {
 public:
  explicit ChosenTokens(std::span<const Span> spans, std::int64_t unit = 1) {
    for (const Span& span : spans) {
      if (span.begin == span.end) continue;
      spans_.push_back(span);
      first_.push_back(count_);
      count_ += (span.end - span.begin + unit - 1) / unit * unit;
    }
  }

  /// Returns the count of new numbers, padding included.
  std::int64_t count() const { return count_; }
  std::int64_t spans() const { return std::ssize(spans_); }
  const Span& span(std::int64_t i) const { return spans_[static_cast<std::size_t>(i)]; }
  /// Returns the new number of the first token of span `i`.
  std::int64_t first(std::int64_t i) const { return first_[static_cast<std::size_t>(i)]; }

  /// Returns the new number after the last token of span `i`.
  std::int64_t last(std::int64_t i) const { return first(i) + span(i).end - span(i).begin; }

  /// Returns the span that holds the token whose new number is `number`, or that has the padding before it.
  std::int64_t span_of(std::int64_t number) const {
    return std::ranges::upper_bound(first_, number) - first_.begin() - 1;
  }

  /// Whether every span holds whole blocks: it begins and ends at a block boundary; the last may end with the sequence.
  bool holds_whole(std::int64_t block, std::int64_t tokens) const {
    for (std::int64_t i = 0; i < spans(); ++i) {
      const bool ends = span(i).end % block == 0 || (i + 1 == spans() && span(i).end == tokens);
      if (span(i).begin % block != 0 || !ends) return false;
    }
    return true;
  }

 private:
  std::vector<Span> spans_;
  std::vector<std::int64_t> first_;
  std::int64_t count_ = 0;
};

}  // namespace flashmask
