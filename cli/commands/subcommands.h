// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/base/console.h"
#include "cli/base/subcommand.h"

/// Each function adds one subcommand to `command`. The one that the user asked for runs, writes to the console and
/// leaves its exit status in `status`: 0, or 1 when its check fails.
namespace flashmask::cli {

void add_info(CLI::App& command, Console& console, int& status);
void add_show(CLI::App& command, Console& console, int& status);
void add_check(CLI::App& command, Console& console, int& status);
void add_partition(CLI::App& command, Console& console, int& status);
void add_score(CLI::App& command, Console& console, int& status);
void add_cache(CLI::App& command, Console& console, int& status);
void add_attend(CLI::App& command, Console& console, int& status);

}  // namespace flashmask::cli
