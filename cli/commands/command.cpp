// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>

#include "cli/base/names.h"
#include "cli/commands/help_formatter.h"
#include "cli/commands/subcommands.h"
#include "cli/commands/version.h"
#include "flashmask/error.h"

namespace flashmask::cli {
namespace {

constexpr int kRefused = 2;

int refuse(Console& console, const std::string& message) {
  console.err << "flashmask: " << message << "\n";
  return kRefused;
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

/// Whether there are no arguments, or the first should be a subcommand but is not.
bool misnamed(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty()) return true;
  const std::vector<std::string> names = subcommand_names(app);
  return arguments.front().front() != '-' && std::find(names.begin(), names.end(), arguments.front()) == names.end();
}

int refuse_subcommand(const CLI::App& app, const std::vector<std::string>& arguments, Console& console) {
  const std::vector<std::string> names = subcommand_names(app);
  const std::string expected = "give one of " + join(names) + ", or --help";
  if (arguments.empty()) return refuse(console, expected);
  const std::string nearest = nearest_name(arguments.front(), names);
  const std::string hint = nearest.empty() ? "" : " (did you mean " + nearest + "?)";
  return refuse(console, "no subcommand \"" + arguments.front() + "\"" + hint + "; " + expected);
}

/// CLI11 throws for --help and --version too; these are not errors.
int finish_parse(const CLI::App& app, const CLI::ParseError& error, Console& console) {
  if (error.get_exit_code() == 0) return app.exit(error, console.out, console.err);
  const auto asked = app.get_subcommands();
  const std::string command = asked.empty() ? "flashmask" : "flashmask " + asked.front()->get_name();
  return refuse(console, std::string(error.what()) + "; see " + command + " --help");
}

/// Fails if the output did not arrive: a full disk shows only when the last of it is written.
int finish_output(Console& console, int status) {
  if (console.out.flush()) return status;
  return refuse(console, "standard output could not be written to its end: is the disk full, or was it closed?");
}

void parse(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector in reverse order
  app.parse(std::move(arguments));
}

int run_subcommand(std::vector<std::string> arguments, Console& console) {
  CLI::App app("Exact attention under rich masks", "flashmask");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", version());
  app.require_subcommand(1);
  int status = 0;
  add_attend(app, console, status);
  add_show(app, console, status);
  add_check(app, console, status);
  add_partition(app, console, status);
  add_score(app, console, status);
  add_cache(app, console, status);
  add_info(app, console, status);
  app.footer(
      "Exit status: 0 done; 1 check or attend found an error larger than its bound; 2 the request could not be\n"
      "carried out.");
  if (misnamed(app, arguments)) return refuse_subcommand(app, arguments, console);
  try {
    parse(app, std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return finish_parse(app, error, console);
  } catch (const Error& error) {
    return refuse(console, error.what());
  } catch (const std::bad_alloc&) {
    return refuse(console, "out of memory; ask for fewer tokens, heads or sequences");
  } catch (const std::length_error&) {
    return refuse(console, "out of memory; ask for fewer tokens, heads or sequences");
  }
  return status;
}

}  // namespace

int run(std::vector<std::string> arguments, Console& console) {
  return finish_output(console, run_subcommand(std::move(arguments), console));
}

}  // namespace flashmask::cli
