// SPDX-License-Identifier: Apache-2.0
#include "cli/base/names.h"

#include <algorithm>
#include <numeric>

namespace flashmask::cli {
namespace {

/// Levenshtein distance, one row of the table at a time.
std::size_t edits(const std::string& from, const std::string& to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(const std::string& given, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t fewest = given.size() / 2 + 1;  // further away it is another word
  for (const std::string& candidate : candidates) {
    const bool begins = !given.empty() && candidate.compare(0, given.size(), given) == 0;
    const std::size_t distance = begins ? 1 : edits(given, candidate);
    if (distance < fewest) {
      fewest = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace flashmask::cli
