// SPDX-License-Identifier: Apache-2.0
#include "cli/base/printable.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

namespace flashmask::cli {
namespace {

constexpr std::size_t kLongest = 40;

std::string escaped(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

/// Bytes of the printable character at the front of `text`; 0 where there is none.
std::size_t character_size(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return lead >= ' ' && lead != 127 ? 1 : 0;
  const auto size = static_cast<std::size_t>(std::countl_one(lead));
  if (size < 2 || size > 4 || size > text.size()) return 0;
  unsigned code = lead & (0x7FU >> size);
  for (const char next : text.substr(1, size - 1)) {
    if ((next & 0xC0) != 0x80) return 0;
    code = code << 6 | (next & 0x3FU);
  }
  // Smaller codes are control characters, or are written in more bytes than they need.
  constexpr std::array<unsigned, 3> kLeast = {0xA0, 0x800, 0x10000};
  return code >= kLeast[size - 2] ? size : 0;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string shown;
  std::string_view rest = text;
  while (!rest.empty() && text.size() - rest.size() < kLongest) {
    const std::size_t size = character_size(rest);
    shown += size > 0 ? std::string(rest.substr(0, size)) : escaped(static_cast<unsigned char>(rest.front()));
    rest.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return shown + (rest.empty() ? "" : "…");
}

}  // namespace flashmask::cli
