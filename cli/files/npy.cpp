// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy.h"

#include <array>
#include <charconv>
#include <optional>

#include "cli/base/printable.h"
#include "cli/base/quantities.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(Status::invalid_argument, name + ": " + what);
}

[[noreturn]] void refuse_header(const std::string& name) {
  refuse(name, "malformed .npy header; write the file with numpy.save");
}

/// The Python dictionary of three literals with which numpy.save describes an array.
struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;

  bool complete() const { return descr && fortran_order && shape; }
};

/// Reads the dictionary from front to back; its keys may come in any order, each once.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      parse_entry(header);
      if (!accept(',') && peek() != '}') refuse_header(name_);
    }
    skip_spaces();
    if (!rest_.empty() || !header.complete()) refuse_header(name_);
    return header;
  }

 private:
  void parse_entry(Header& header) {
    const std::string key = quoted();
    expect(':');
    if (key == "descr" && !header.descr) {
      header.descr = element_type();
    } else if (key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = boolean();
    } else if (key == "shape" && !header.shape) {
      header.shape = tuple();
    } else {
      refuse_header(name_);
    }
  }

  std::string element_type() {
    if (peek() == '[') refuse(name_, "an array of records; expected booleans, save one field of it");
    return quoted();
  }

  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    refuse_header(name_);
  }

  /// "()", "(3,)", "(3, 4)" or "(3, 4,)".
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> numbers;
    expect('(');
    while (!accept(')')) {
      numbers.push_back(number());
      if (!accept(',') && peek() != ')') refuse_header(name_);
    }
    return numbers;
  }

  std::int64_t number() {
    skip_spaces();
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0) refuse_header(name_);
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') refuse_header(name_);
    rest_.remove_prefix(1);
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) refuse_header(name_);
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }

  char peek() {
    skip_spaces();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool accept(char wanted) {
    const bool found = peek() == wanted;
    if (found) rest_.remove_prefix(1);
    return found;
  }
  void expect(char wanted) {
    if (!accept(wanted)) refuse_header(name_);
  }

  std::string_view rest_;
  const std::string& name_;
};

/// The dictionary's text, and the offset of the array after it.
struct HeaderText {
  std::string_view text;
  std::size_t end = 0;
};

std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

HeaderText find_header(std::string_view head, const std::string& name) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!head.starts_with(kMagic)) refuse(name, "no .npy file: it does not begin as numpy.save begins one");
  constexpr std::size_t kVersionEnd = 8;
  const int version = head.size() < kVersionEnd ? 0 : static_cast<unsigned char>(head[6]);
  if (head.size() >= kVersionEnd && (version < 1 || version > 3 || head[7] != 0)) {
    refuse(name, ".npy format " + std::to_string(version) + "." +
                     std::to_string(static_cast<int>(static_cast<unsigned char>(head[7]))) +
                     " is unknown; the formats are 1.0, 2.0 and 3.0");
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4, begin = kVersionEnd + length_bytes;
  if (head.size() < begin) refuse(name, "cut off inside its header; write it again");
  const std::size_t length = little_endian(head.substr(kVersionEnd, length_bytes));
  if (length > kLargestNpyHeader - begin) refuse_header(name);
  if (head.size() < begin + length) refuse(name, "cut off inside its header; write it again");
  return {head.substr(begin, length), begin + length};
}

struct ElementType {
  std::string_view name;  ///< without the byte order
  DenseType type;
  std::int64_t bytes;
};
constexpr std::array<ElementType, 9> kElementTypes{{{"b1", DenseType::i8, 1},
                                                    {"i1", DenseType::i8, 1},
                                                    {"u1", DenseType::i8, 1},
                                                    {"i2", DenseType::i16, 2},
                                                    {"u2", DenseType::i16, 2},
                                                    {"i4", DenseType::i32, 4},
                                                    {"u4", DenseType::i32, 4},
                                                    {"i8", DenseType::i64, 8},
                                                    {"u8", DenseType::i64, 8}}};

/// Advice for a dtype that holds no booleans.
std::string remedy(const std::string& descr) {
  const std::string_view kind = std::string_view(descr).substr(0, 2);
  if (kind == "|O") return "; it holds Python objects: save array.astype(bool)";
  if (kind == "<f" || kind == ">f") return "; of a mask that is added to the scores save array == 0";
  return "; save array.astype(bool)";
}

const ElementType& element_type_of(const std::string& descr, const std::string& name) {
  const std::string_view kind = std::string_view(descr).substr(std::min<std::size_t>(1, descr.size()));
  for (const ElementType& element : kElementTypes) {
    if (kind != element.name) continue;
    const char order = descr.front();
    if (order == '<' || (order == '|' && element.bytes == 1)) return element;
    if (order == '>') {
      refuse(name, "big-endian integers ('" + descr + "'); save array.astype('<" + std::string(kind) + "')");
    }
  }
  refuse(name, "dtype '" + printable(descr) + "'; expected bool, or integers that are 0 or 1" + remedy(descr));
}

/// Throws unless the array ends where the file does. No intermediate product exceeds the size of the file.
std::size_t array_bytes(const std::vector<std::int64_t>& shape, std::int64_t element_bytes, std::size_t present,
                        const std::string& name, const std::string& descr) {
  const std::string array = descr + " " + shape_text(shape);
  auto bytes = static_cast<std::size_t>(element_bytes);
  for (const std::int64_t dim : shape) {
    const auto size = static_cast<std::size_t>(dim);
    if (bytes > present / size) {
      refuse(name, "cut off: " + with_commas(static_cast<std::int64_t>(present)) +
                       " bytes follow the header, too few for " + array + "; write it again");
    }
    bytes *= size;
  }
  if (bytes == present) return bytes;
  refuse(name, "longer than its array " + array + " by " + with_commas(static_cast<std::int64_t>(present - bytes)) +
                   " bytes; write it again");
}

void check_shape(const std::vector<std::int64_t>& shape, const std::string& name) {
  if (shape.size() < 2 || shape.size() > 4) {
    refuse(name, "an array of shape " + shape_text(shape) +
                     "; expected (rows, columns), (heads, rows, columns) or (batch, heads, rows, columns)");
  }
  for (const std::int64_t dim : shape) {
    if (dim == 0) refuse(name, "an empty array of shape " + shape_text(shape) + "; a mask has rows and columns");
  }
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t dim : shape) text += (text.empty() ? "(" : ", ") + std::to_string(dim);
  return shape.empty() ? "()" : text + (shape.size() == 1 ? ",)" : ")");
}

NpyArray describe_npy(std::string_view head, std::size_t file_size, const std::string& name) {
  const HeaderText found = find_header(head, name);
  Header header = HeaderParser(found.text, name).parse();
  const ElementType& element = element_type_of(*header.descr, name);
  check_shape(*header.shape, name);
  if (*header.fortran_order) {
    refuse(name, "columns come first in memory (Fortran order); save numpy.ascontiguousarray(array)");
  }
  NpyArray array{element.type, *header.descr, *std::move(header.shape), found.end, file_size - found.end};
  array.bytes = array_bytes(array.shape, element.bytes, array.bytes, name, array.dtype);
  return array;
}

}  // namespace flashmask::cli
