// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashmask::cli {

/// The requested columns of a CSV of token counts, one row per record.
struct LengthTable {
  std::vector<std::string> columns;
  std::vector<std::int64_t> values;  ///< [rows, columns]

  std::int64_t rows() const { return columns.empty() ? 0 : static_cast<std::int64_t>(values.size() / columns.size()); }
  std::int64_t at(std::int64_t row, std::size_t column) const {
    return values[static_cast<std::size_t>(row) * columns.size() + column];
  }
};

/// Reads `columns` from an RFC 4180 text whose first record names the columns; other columns may hold anything. A
/// length is a whole number, 0 to 2147483647. Throws Status::invalid_argument with `name` and the line number.
LengthTable parse_lengths(std::string_view text, const std::vector<std::string>& columns, std::string_view name);

/// Reads the columns from a file; throws Status::io when it cannot be read.
LengthTable read_lengths(const std::string& path, const std::vector<std::string>& columns);

}  // namespace flashmask::cli
