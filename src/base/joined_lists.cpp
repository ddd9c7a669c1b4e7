// SPDX-License-Identifier: Apache-2.0
#include "base/joined_lists.h"

#include <cstddef>

namespace flashmask {
namespace {

void append(RunLists& lists, const RunLists& piece) {
  const auto base = static_cast<std::int64_t>(lists.runs.size());
  for (std::size_t i = 1; i < piece.offsets.size(); ++i) lists.offsets.push_back(base + piece.offsets[i]);
  lists.runs.insert(lists.runs.end(), piece.runs.begin(), piece.runs.end());
}

}  // namespace

RunLists joined(const std::vector<RunLists>& pieces) {
  std::size_t runs = 0;
  std::size_t lists = 0;
  for (const RunLists& piece : pieces) {
    runs += piece.runs.size();
    lists += piece.offsets.size() - 1;
  }
  RunLists all;
  all.offsets.reserve(lists + 1);
  all.runs.reserve(runs);
  all.offsets.push_back(0);
  for (const RunLists& piece : pieces) append(all, piece);
  return all;
}

}  // namespace flashmask
