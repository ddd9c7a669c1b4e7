#pragma once

#include "cli11_app.h"
#include "console.h"

/// Each adds one subcommand to `app`. When it is the one that was asked for, it runs, writes to the console and leaves
/// its exit status in `status`: 0, or 1 when what it checked is wrong.
namespace flashmask::cli {

void add_info(CLI::App& app, Console& console, int& status);
void add_show(CLI::App& app, Console& console, int& status);
void add_check(CLI::App& app, Console& console, int& status);
void add_bench(CLI::App& app, Console& console, int& status);
void add_attend(CLI::App& app, Console& console, int& status);

}  // namespace flashmask::cli
