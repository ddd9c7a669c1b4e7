// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// Text from a file, safe to print: at most 40 bytes of it, with every byte that is not printable UTF-8 as \xNN, so
/// that the file cannot send codes to the terminal.
std::string printable(const std::string& text);

}  // namespace flashmask::cli
