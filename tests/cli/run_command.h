// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands/command.h"

/// The command without a process.
namespace flashmask::cli {

struct Outcome {
  int status = 0;
  std::string out, err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline Outcome command(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Console console{.out = out, .err = err};
  const int status = run(std::move(arguments), console);
  return {status, out.str(), err.str()};
}

/// Status 2, one line on standard error, nothing on standard output.
inline void expect_refused(std::vector<std::string> arguments, const std::string& part) {
  const Outcome outcome = command(std::move(arguments));
  EXPECT_EQ(outcome.status, 2) << part;
  EXPECT_EQ(outcome.out, "") << part;
  EXPECT_EQ(outcome.err.rfind("flashmask: ", 0), 0U) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " not in: " << outcome.err;
}

}  // namespace flashmask::cli
