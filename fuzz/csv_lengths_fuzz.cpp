// SPDX-License-Identifier: Apache-2.0
// Any bytes as a CSV of lengths are read in full, or refused with a message.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/files/csv_lengths.h"
#include "flashmask/error.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read(std::string_view text) {
  const auto table = flashmask::cli::parse_lengths(text, {"prompt", "output"}, "fuzz.csv");
  check(table.columns.size() == 2);
  check(table.values.size() == static_cast<std::size_t>(table.rows()) * 2);
  for (const std::int64_t value : table.values) check(value >= 0 && value <= 2147483647);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const flashmask::Error& error) {
    check(error.status() == flashmask::Status::invalid_argument);
    check(std::string_view(error.what()).find("fuzz.csv") != std::string_view::npos);
  }
  return 0;
}
