// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace flashmask::cli {

/// Lines of text cells in aligned columns.
class Table {
 public:
  enum class Align { left, right };

  explicit Table(std::vector<Align> columns) : align_(std::move(columns)) {}

  /// Adds a line. One with fewer cells than columns is filled up with empty cells.
  void add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }

  /// The table as text: two spaces between columns, none at the end of a line.
  std::string text() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<Align> align_;
  std::vector<std::vector<std::string>> lines_;
};

/// Columns that a UTF-8 text takes on a terminal, one per code point.
std::size_t display_width(const std::string& text);

}  // namespace flashmask::cli
