#include "corpus/corpus.h"

#include <algorithm>

#include "flashmask/builders.h"

namespace flashmask::corpus {
namespace {

using masks::Lengths;

/// Documents of very different lengths, some of them empty, that fill seven eighths of the tokens: the rest is padding.
std::vector<std::int64_t> documents(std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  std::int64_t left = tokens - tokens / 8;
  for (std::int64_t k = 0; left > 0; ++k) {
    lengths.push_back(std::min(left, k * k * 5 % 37));
    left -= lengths.back();
  }
  return lengths;
}

std::int64_t window(const Size& n) { return n.columns / 5 + 1; }

// clang-format off: one line a mask
std::vector<Entry> make_entries() {
  using enum Fits;
  return {
      {"full", any_size, [](const Size& n) { return masks::full(n.rows, n.columns); }},
      {"causal", any_size, [](const Size& n) { return masks::causal(n.rows, n.columns); }},
      {"sliding_window", any_size, [](const Size& n) { return masks::sliding_window(n.rows, n.columns, window(n)); }},
      {"causal_document", square, [](const Size& n) { return masks::causal_document(documents(n.rows), n.rows); }},
      {"document", square, [](const Size& n) { return masks::document(documents(n.rows), n.rows); }},
  };
}
// clang-format on

}  // namespace

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = make_entries();
  return all;
}

const std::vector<Size>& awkward_sizes() {
  static const std::vector<Size> all = {{1, 1},   {1, 70},    {70, 1},    {63, 65},   {64, 64},  {65, 63},
                                        {97, 97}, {128, 200}, {200, 128}, {239, 239}, {257, 257}};
  return all;
}

}  // namespace flashmask::corpus
