// SPDX-License-Identifier: Apache-2.0
#include "cli/base/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

namespace flashmask::cli {
namespace {

/// https://no-color.org: set and not empty means no colour.
bool colour_refused() {
  const char* no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  return no_color != nullptr && *no_color != '\0';
}

int terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Console standard_console() {
  return {.out = std::cout,
          .err = std::cerr,
          .colour = isatty(STDOUT_FILENO) != 0 && !colour_refused(),
          .progress = isatty(STDERR_FILENO) != 0,
          .width = terminal_width()};
}

}  // namespace flashmask::cli
