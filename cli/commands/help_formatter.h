// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace flashmask::cli {

/// Help whose option lines show the name, the kind of value and the default; ranges and choices are in the description,
/// and in the error message.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(28); }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    // Removes CLI11's mark on a flag that switches something off.
    for (std::size_t mark = name.find("{false}"); mark != std::string::npos; mark = name.find("{false}")) {
      name.erase(mark, 7);
    }
    return name;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return "";  // a flag
    const std::string type = option->get_type_name();
    const bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
    const std::string preset = option->get_default_str().empty() ? "" : " [" + option->get_default_str() + "]";
    return (number ? " N" : " TEXT") + preset;
  }
};

}  // namespace flashmask::cli
