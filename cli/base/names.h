// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace flashmask::cli {

/// The candidate with the fewest edits (insert, drop, change a letter); one that starts with `given` counts as one
/// edit. Empty when none is near.
std::string nearest_name(const std::string& given, const std::vector<std::string>& candidates);

/// The parts between separators: "a,,b" has three, one of them empty.
std::vector<std::string> split(const std::string& text, char separator);

/// "a, b, c".
inline std::string join(const std::vector<std::string>& names, const std::string& separator = ", ") {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : separator) + name;
  return joined;
}

}  // namespace flashmask::cli
