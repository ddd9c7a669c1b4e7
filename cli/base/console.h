// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

namespace flashmask::cli {

/// Where a command writes, and what the other end can show.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool colour = false;    ///< `out` is a terminal and NO_COLOR is not set
  bool progress = false;  ///< `err` is a terminal
  int width = 80;         ///< columns of the terminal
};

/// Standard output and standard error as they are.
Console standard_console();

}  // namespace flashmask::cli
