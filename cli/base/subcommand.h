// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
}  // namespace CLI

/// The part of CLI11 that the command uses. CLI11's header adds five to ten seconds of compile time to every file that
/// includes it, so only subcommand.cpp and commands/command.cpp do.
namespace flashmask::cli {

/// One option: the values that it takes, and where help shows it.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option& group(const std::string& name);
  Option& range(std::int64_t least, std::int64_t most);
  Option& at_least(std::int64_t least);  ///< and at most the largest int32
  Option& one_of(const std::vector<std::string>& choices);
  Option& ends_in(const std::string& ending);  ///< in upper or lower case
  Option& show_default();

 private:
  CLI::Option* option_;
};

/// A subcommand and its options. Copies refer to the same subcommand.
class Subcommand {
 public:
  Subcommand(CLI::App& command, const std::string& name, const std::string& what);

  /// `names` is "--name", or a word for a positional value, or both separated by a comma. Value is std::string, an
  /// integer, double, or std::optional of std::string or of an integer. Text must not be empty.
  template <class Value>
  Option option(const std::string& names, Value& value, const std::string& help);

  /// An option whose text is read by `parse`. What `parse` throws is the command's error message.
  Option parsed_option(const std::string& names, std::function<void(const std::string&)> parse,
                       const std::string& help);

  /// A flag; the form "!--name" clears `value`.
  Option flag(const std::string& names, bool& value, const std::string& help);

  bool has(const std::string& name) const;
  /// Names of the options in a group that the user gave.
  std::vector<std::string> given_in(const std::string& group) const;

  void footer(const std::string& text);  ///< below the options in help
  void on_run(std::function<void()> run);

 private:
  CLI::App* app_;
};

}  // namespace flashmask::cli
