// SPDX-License-Identifier: Apache-2.0
#include "cli/files/csv_lengths.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>

#include "cli/base/names.h"
#include "cli/base/printable.h"
#include "cli/files/csv_records.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();

/// Turns records into the requested columns; the first record is the header.
class LengthReader {
 public:
  LengthReader(const std::vector<std::string>& columns, std::string_view name) : name_(name) {
    table_.columns = columns;
  }

  void add(const CsvRecord& record) {
    if (header_.empty()) return read_header(record);
    if (record.fields.size() != header_.size()) refuse_field_count(record);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      table_.values.push_back(length(record, table_.columns[i], record.fields[positions_[i]]));
    }
  }

  LengthTable finish() {
    if (header_.empty()) {
      throw Error(Status::invalid_argument,
                  name_ + ": empty; the first line must name the columns, among them " + join(table_.columns));
    }
    return std::move(table_);
  }

 private:
  void read_header(const CsvRecord& record) {
    header_ = record.fields;
    for (const std::string& column : table_.columns) positions_.push_back(position(record, column));
  }

  std::size_t position(const CsvRecord& record, const std::string& column) const {
    const auto found = std::find(header_.begin(), header_.end(), column);
    if (found == header_.end()) {
      refuse(record.line, "no column " + quoted(column) + "; the columns are " + quoted_list(header_) +
                              "; name yours with --prompt and --outputs");
    }
    if (std::find(found + 1, header_.end(), column) != header_.end()) {
      refuse(record.line, "two columns are named " + quoted(column) + "; rename one");
    }
    return static_cast<std::size_t>(found - header_.begin());
  }

  std::int64_t length(const CsvRecord& record, const std::string& column, const std::string& field) const {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool whole = error == std::errc() && end == field.data() + field.size();
    if (!whole || value < 0 || value > kLongest) {
      refuse(record.line,
             column + " is " + quoted(field) + "; expected a whole number of tokens, 0 to " + std::to_string(kLongest));
    }
    return value;
  }

  [[noreturn]] void refuse_field_count(const CsvRecord& record) const {
    refuse(record.line, std::to_string(record.fields.size()) + " fields, but the header names " +
                            std::to_string(header_.size()) + " columns");
  }

  [[noreturn]] void refuse(std::int64_t line, const std::string& what) const {
    throw Error(Status::invalid_argument, name_ + ", line " + std::to_string(line) + ": " + what);
  }

  std::string name_;
  LengthTable table_;
  std::vector<std::string> header_;
  std::vector<std::size_t> positions_;  ///< positions of the requested columns in a record
};

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.substr(0, kMark.size()) == kMark ? text.substr(kMark.size()) : text;
}

}  // namespace

LengthTable parse_lengths(std::string_view text, const std::vector<std::string>& columns, std::string_view name) {
  LengthReader reader(columns, name);
  for_each_record(without_byte_order_mark(text), name, [&](const CsvRecord& record) { reader.add(record); });
  return reader.finish();
}

LengthTable read_lengths(const std::string& path, const std::vector<std::string>& columns) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  const bool opened = file.is_open();
  if (opened && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!opened || file.bad() || !text) {
    throw Error(Status::io, path + ": cannot be read; give the path of a CSV file of lengths");
  }
  return parse_lengths(text.view(), columns, path);
}

}  // namespace flashmask::cli
