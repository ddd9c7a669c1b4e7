// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/base/console.h"

namespace flashmask::cli {

/// The command `flashmask` with these arguments, the name of the program left out. Returns the exit status: 0, 1 when
/// a check found an error, 2 when the request could not be carried out or `console.out` not be written, with one
/// message on `console.err`.
int run(std::vector<std::string> arguments, Console& console);

}  // namespace flashmask::cli
