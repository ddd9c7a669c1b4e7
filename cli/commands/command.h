// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/base/console.h"

namespace flashmask::cli {

/// Runs the command `flashmask` with these arguments (without the program's name). Returns the exit status: 0; 1 when a
/// check found an error; 2 when the request could not be carried out or `console.out` could not be written, with one
/// message on `console.err`.
int run(std::vector<std::string> arguments, Console& console);

}  // namespace flashmask::cli
