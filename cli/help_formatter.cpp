#include "help_formatter.h"

namespace flashmask::cli {

HelpFormatter::HelpFormatter() { column_width(28); }

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  std::string name = CLI::Formatter::make_option_name(option, is_positional);
  // CLI11 marks a flag that switches off.
  for (std::size_t mark = name.find("{false}"); mark != std::string::npos; mark = name.find("{false}")) {
    name.erase(mark, 7);
  }
  return name;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_items_expected_max() == 0) return "";  // a flag
  const std::string type = option->get_type_name();
  const bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
  const std::string preset = option->get_default_str().empty() ? "" : " [" + option->get_default_str() + "]";
  return (number ? " N" : " TEXT") + preset;
}

}  // namespace flashmask::cli
