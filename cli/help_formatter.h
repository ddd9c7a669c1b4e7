#pragma once

#include <CLI/CLI.hpp>

namespace flashmask::cli {

/// Help whose option lines hold the name, what kind of value it takes and the default; ranges and choices are in the
/// description, and in the message when they are missed.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

}  // namespace flashmask::cli
