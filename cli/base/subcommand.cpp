// SPDX-License-Identifier: Apache-2.0
#include "cli/base/subcommand.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "cli/base/names.h"
#include "flashmask/error.h"

namespace flashmask::cli {

Option& Option::group(const std::string& name) {
  option_->group(name);
  return *this;
}

Option& Option::range(std::int64_t least, std::int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::at_least(std::int64_t least) { return range(least, std::numeric_limits<std::int32_t>::max()); }

Option& Option::one_of(const std::vector<std::string>& choices) {
  option_->check(CLI::IsMember(choices));
  return *this;
}

Option& Option::ends_in(const std::string& ending) {
  option_->check([ending](const std::string& given) {
    const std::size_t begin = given.size() - std::min(given.size(), ending.size());
    const bool fits = CLI::detail::to_lower(given.substr(begin)) == ending;
    return fits ? "" : '"' + given + "\" does not end in " + ending;
  });
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Subcommand::Subcommand(CLI::App& command, const std::string& name, const std::string& what)
    : app_(command.add_subcommand(name, what)) {}

namespace {

/// Says why text is no whole number of 64 bits with or without a sign, where CLI11 would take another number.
template <class Number>
std::string why_other_number(const std::string& given) {
  errno = 0;
  if constexpr (std::is_signed_v<Number>) {
    std::strtoll(given.c_str(), nullptr, 0);
  } else {
    if (given.starts_with('-')) return given + " is negative; give 0 or more";
    std::strtoull(given.c_str(), nullptr, 0);
  }
  return errno == ERANGE ? given + " does not fit 64 bits; give a number nearer to 0" : "";
}

/// What an option holds, std::optional or not.
template <class Value>
struct Plain {
  using Type = Value;
};
template <class Value>
struct Plain<std::optional<Value>> {
  using Type = Value;
};

}  // namespace

template <class Value>
Option Subcommand::option(const std::string& names, Value& value, const std::string& help) {
  CLI::Option* option = app_->add_option(names, value, help);
  using Type = typename Plain<Value>::Type;
  if constexpr (std::is_integral_v<Type>) option->check(why_other_number<Type>);
  if constexpr (std::is_same_v<Type, std::string>) {
    option->check([](const std::string& given) { return given.empty() ? "empty; give a value, or leave it out" : ""; });
  }
  return Option(*option);
}

template Option Subcommand::option(const std::string&, std::string&, const std::string&);
template Option Subcommand::option(const std::string&, int&, const std::string&);
template Option Subcommand::option(const std::string&, std::int64_t&, const std::string&);
template Option Subcommand::option(const std::string&, std::uint64_t&, const std::string&);
template Option Subcommand::option(const std::string&, double&, const std::string&);
template Option Subcommand::option(const std::string&, std::optional<std::string>&, const std::string&);
template Option Subcommand::option(const std::string&, std::optional<int>&, const std::string&);
template Option Subcommand::option(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option Subcommand::option(const std::string&, std::optional<std::uint64_t>&, const std::string&);

Option Subcommand::parsed_option(const std::string& names, std::function<void(const std::string&)> parse,
                                 const std::string& help) {
  return Option(*app_->add_option_function<std::string>(names, std::move(parse), help));
}

Option Subcommand::flag(const std::string& names, bool& value, const std::string& help) {
  return Option(*app_->add_flag(names, value, help));
}

bool Subcommand::has(const std::string& name) const { return app_->get_option_no_throw(name) != nullptr; }

std::vector<std::string> Subcommand::given_in(const std::string& group) const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_group() == group && option->count() > 0) names.push_back(option->get_name());
  }
  return names;
}

void Subcommand::footer(const std::string& text) { app_->footer(text); }

void Subcommand::on_run(std::function<void()> run) { app_->callback(std::move(run)); }

}  // namespace flashmask::cli
