// SPDX-License-Identifier: Apache-2.0
#include "cli/files/csv_records.h"

#include <csv.h>

#include <new>

#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

/// libcsv calls back from C, where no exception may pass, so the callbacks only collect.
struct Collected {
  std::vector<std::string> fields;
  bool complete = false;
};

void collect_field(void* bytes, std::size_t size, void* data) noexcept {
  static_cast<Collected*>(data)->fields.emplace_back(static_cast<const char*>(bytes), size);
}

void collect_record(int, void* data) noexcept { static_cast<Collected*>(data)->complete = true; }

/// Owns a libcsv parser that refuses stray and unclosed quotes.
class Parser {
 public:
  Parser() {
    if (csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI) != 0) throw std::bad_alloc();
  }
  ~Parser() { csv_free(&parser_); }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  bool parse(std::string_view text, Collected& collected) {
    return csv_parse(&parser_, text.data(), text.size(), collect_field, collect_record, &collected) == text.size();
  }
  bool finish(Collected& collected) { return csv_fini(&parser_, collect_field, collect_record, &collected) == 0; }
  bool out_of_memory() { return csv_error(&parser_) == CSV_ENOMEM || csv_error(&parser_) == CSV_ETOOBIG; }

 private:
  csv_parser parser_{};
};

/// The physical line at the front of `text`, including its LF, CRLF or CR.
std::string_view first_line(std::string_view text) {
  const std::size_t end = text.find_first_of("\r\n");
  if (end == std::string_view::npos) return text;
  const bool crlf = text.substr(end, 2) == "\r\n";
  return text.substr(0, end + (crlf ? 2 : 1));
}

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

/// Feeds the parser line by line; a record ends with a line, so each line yields at most one.
class RecordReader {
 public:
  RecordReader(std::string_view name, const std::function<void(const CsvRecord&)>& visit)
      : name_(name), visit_(visit) {}

  void read(std::string_view text) {
    for (; !text.empty(); text.remove_prefix(first_line(text).size())) read_line(first_line(text));
    if (!parser_.finish(collected_)) refuse(record_line_, "a quoted field that begins in this record is never closed");
    deliver();
  }

 private:
  void read_line(std::string_view line) {
    ++line_;
    if (!inside_record_ && !blank(line)) {
      inside_record_ = true;
      record_line_ = line_;
    }
    if (!parser_.parse(line, collected_)) {
      refuse(line_, "a quote inside a field; quote the whole field and double the quotes in it");
    }
    deliver();
  }

  void deliver() {
    if (!collected_.complete) return;
    visit_({record_line_, std::move(collected_.fields)});
    collected_ = {};
    inside_record_ = false;
  }

  [[noreturn]] void refuse(std::int64_t line, const std::string& what) {
    if (parser_.out_of_memory()) throw std::bad_alloc();
    throw Error(Status::invalid_argument, name_ + ", line " + std::to_string(line) + ": " + what);
  }

  std::string name_;
  const std::function<void(const CsvRecord&)>& visit_;
  Parser parser_;
  Collected collected_;
  std::int64_t line_ = 0, record_line_ = 1;
  bool inside_record_ = false;
};

}  // namespace

void for_each_record(std::string_view text, std::string_view name, const std::function<void(const CsvRecord&)>& visit) {
  RecordReader(name, visit).read(text);
}

}  // namespace flashmask::cli
