// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace flashmask::cli {

/// Text from a file, safe to print: at most 40 bytes of it, with every byte that is not printable UTF-8 as \xNN, so
/// that the file cannot send codes to the terminal.
std::string printable(const std::string& text);

/// The printable text in quotation marks.
std::string quoted(const std::string& text);

/// The first twelve texts, quoted and separated by commas, then how many follow: "a", "b" and 7 more.
std::string quoted_list(const std::vector<std::string>& texts);

}  // namespace flashmask::cli
