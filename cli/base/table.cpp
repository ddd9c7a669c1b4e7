// SPDX-License-Identifier: Apache-2.0
#include "cli/base/table.h"

#include <algorithm>

namespace flashmask::cli {

std::size_t display_width(const std::string& text) {
  const auto continues = [](unsigned char byte) { return (byte & 0xC0) == 0x80; };
  return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths(align_.size());
  for (const auto& line : lines_) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], display_width(line[i]));
  }
  return widths;
}

std::string Table::text() const {
  const std::vector<std::size_t> width = widths();
  std::string text;
  for (const auto& line : lines_) {
    std::string drawn;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(width[i] - display_width(line[i]), ' ');
      if (i > 0) drawn += "  ";
      drawn += align_[i] == Align::left ? line[i] + padding : padding + line[i];
    }
    drawn.erase(drawn.find_last_not_of(' ') + 1);
    text += drawn + "\n";
  }
  return text;
}

}  // namespace flashmask::cli
