// SPDX-License-Identifier: Apache-2.0
#include "flashmask/builders.h"
#include "mask/visibility.h"

namespace flashmask {
namespace {

using masks::Span;
using testing::expect_visible;
using testing::refusal;
using testing::Table;

/// Sets of disjoint spans in any order, some of them empty, within 20 tokens.
const std::vector<std::vector<Span>>& span_sets() {
  static const std::vector<std::vector<Span>> all = {{},        {{2, 5}, {6, 8}},           {{6, 8}, {2, 5}, {5, 6}},
                                                     {{0, 20}}, {{0, 1}, {19, 20}, {4, 4}}, {{7, 7}, {3, 9}, {5, 5}}};
  return all;
}

/// The number of each token's span, or −1 outside.
Table span_of_tokens(const std::vector<Span>& spans, std::int64_t tokens) {
  std::vector<std::int64_t> number(static_cast<std::size_t>(tokens), -1);
  for (std::size_t k = 0; k < spans.size(); ++k) {
    for (std::int64_t t = spans[k].begin; t < spans[k].end; ++t) {
      number[static_cast<std::size_t>(t)] = static_cast<std::int64_t>(k);
    }
  }
  return Table(number);
}

TEST(BidirectionalSpans, SeeThemselvesBothWaysInsideCausalText) {
  for (const auto& spans : span_sets()) {
    const Table span = span_of_tokens(spans, 20);
    expect_visible(masks::bidirectional_spans(20, spans),
                   [&](auto i, auto j) { return j <= i || (span[j] >= 0 && span[i] == span[j]); });
  }
}

TEST(QkSparseSegments, DropTheScoresWithinASegment) {
  for (const auto& segments : span_sets()) {
    const Table segment = span_of_tokens(segments, 20);
    expect_visible(masks::qk_sparse_segments(20, segments),
                   [&](auto i, auto j) { return j <= i && (segment[j] < 0 || segment[i] != segment[j]); });
  }
}

TEST(BidirectionalSpans, RefuseToOverlap) {
  EXPECT_EQ(refusal([] {
              masks::bidirectional_spans(20, std::vector<Span>{{6, 8}, {2, 7}});
            }),
            "bidirectional_spans: spans tokens [2, 7) and tokens [6, 8) overlap; give disjoint ones");
}

TEST(QkSparseSegments, RefuseToLeaveTheSequence) {
  EXPECT_EQ(refusal([] {
              masks::qk_sparse_segments(20, std::vector<Span>{{0, 2}, {18, 21}});
            }),
            "qk_sparse_segments: dropped[1] is tokens [18, 21); give 0 <= begin <= end <= tokens, which is 20");
  EXPECT_EQ(refusal([] {
              masks::qk_sparse_segments(20, std::vector<Span>{{5, 2}});
            }),
            "qk_sparse_segments: dropped[0] is tokens [5, 2); give 0 <= begin <= end <= tokens, which is 20");
  EXPECT_EQ(refusal([] {
              masks::qk_sparse_segments(20, std::vector<Span>{{-1, 2}});
            }),
            "qk_sparse_segments: dropped[0] is tokens [-1, 2); give 0 <= begin <= end <= tokens, which is 20");
}

}  // namespace
}  // namespace flashmask
