// SPDX-License-Identifier: Apache-2.0
#include "cli/masks/given_values.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "cli/base/names.h"
#include "cli/masks/mask_defaults.h"
#include "flashmask/error.h"

namespace flashmask::cli {

void refuse_option(const std::string& option, const std::string& given, const std::string& expected) {
  throw Error(Status::invalid_argument, "--" + option + " is \"" + given + "\"; expected " + expected);
}

std::vector<std::int64_t> parse_numbers(const std::string& text, const std::string& option, char separator) {
  Numbers numbers;
  for (const std::string& part : split(text, separator)) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc() || end != part.data() + part.size()) {
      refuse_option(option, text, std::string("whole numbers separated by '") + separator + "'");
    }
    numbers.push_back(value);
  }
  return numbers;
}

std::vector<std::pair<std::int64_t, std::int64_t>> parse_pairs(const std::string& text, const std::string& option,
                                                               const std::string& such_as) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (const std::string& part : split(text, ',')) {
    const Numbers ends = parse_numbers(part, option, ':');
    if (ends.size() != 2) refuse_option(option, text, such_as);
    pairs.emplace_back(ends[0], ends[1]);
  }
  return pairs;
}

std::int64_t sum(const Numbers& numbers) { return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0}); }

std::int64_t tokens_or(const MaskArguments& given, std::int64_t otherwise) { return given.tokens.value_or(otherwise); }

std::int64_t tokens_of(const MaskArguments& given) { return tokens_or(given, kDefaultTokens); }

std::int64_t columns_of(const MaskArguments& given) { return given.columns.value_or(tokens_of(given)); }

std::int64_t heads_of(const MaskArguments& given) {
  const std::int64_t heads = given.heads.value_or(1);
  if (heads < 1) refuse_option("heads", std::to_string(heads), "at least 1");
  return heads;
}

std::int64_t buckets_of(const MaskArguments& given) {
  const std::int64_t buckets = given.buckets.value_or(4);
  if (buckets < 1) refuse_option("buckets", std::to_string(buckets), "at least 1");
  return buckets;
}

std::uint64_t seed_of(const MaskArguments& given) { return given.seed.value_or(1); }

}  // namespace flashmask::cli
