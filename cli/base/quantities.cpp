// SPDX-License-Identifier: Apache-2.0
#include "cli/base/quantities.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace flashmask::cli {
namespace {

std::string printed(const char* format, int precision, double number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, precision, number);
  return text.data();
}

struct Unit {
  double size;
  const char* name;
};

/// Three significant digits in the largest unit that is not larger than the number.
template <std::size_t Count>
std::string in_units(double number, const std::array<Unit, Count>& largest_first) {
  for (const Unit& unit : largest_first) {
    // 0.9995 of a unit is printed as 1.00 of it.
    if (number >= 0.9995 * unit.size) return significant(number / unit.size) + " " + unit.name;
  }
  return significant(number / largest_first.back().size) + " " + largest_first.back().name;
}

}  // namespace

std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t end = text.size(); end > first_digit + 3; end -= 3) text.insert(end - 3, ",");
  return text;
}

std::string fixed(double number, int decimals) { return printed("%.*f", decimals, number); }

std::string significant(double number) {
  const double size = std::abs(number);
  if (number == 0) return "0";
  if (!std::isfinite(number) || size < 1e-3 || size >= 1e6) return printed("%.*e", 2, number);
  // 0.9995 is printed as 1.00: it has the magnitude of 1.
  const int magnitude = static_cast<int>(std::floor(std::log10(size / 0.9995)));
  return fixed(number, std::max(2 - magnitude, 0));
}

std::string percent(double fraction) { return significant(100 * fraction) + " %"; }

std::string bytes(double count) {
  constexpr std::array<Unit, 4> kUnits{{{1e9, "GB"}, {1e6, "MB"}, {1e3, "KB"}, {1, "bytes"}}};
  return count < 1000 ? fixed(count, 0) + " bytes" : in_units(count, kUnits);
}

std::string seconds(double duration) {
  constexpr std::array<Unit, 3> kUnits{{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}}};
  return in_units(duration, kUnits);
}

}  // namespace flashmask::cli
