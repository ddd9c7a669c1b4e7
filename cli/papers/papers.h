// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/base/console.h"
#include "cli/base/subcommand.h"
#include "cli/papers/papers_bench.h"
#include "cli/papers/papers_cases.h"

namespace flashmask::cli {

struct PapersOptions {
  bool asked = false;
  std::vector<std::string> tables = kPapersTables;
  std::int64_t max_tokens = 16384;
  std::string plot = {};
};

/// Adds --papers and its options. --papers excludes every option added before it except --device, --kernel, --threads,
/// --seed, --json and --help, so call this last.
void add_papers_options(Subcommand& sub, PapersOptions& options);

/// How a run of the published evaluations is done.
struct PapersRun {
  int threads = 0;
  std::uint64_t seed = 1;
  bool json = false;
  PapersPlace place = {};
};

/// Times the published evaluations and prints their tables.
void run_papers(const PapersOptions& options, const PapersRun& how, Console& console);

}  // namespace flashmask::cli
