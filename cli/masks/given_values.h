// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/masks/mask_arguments.h"

/// Shared by the mask families: the user's options as values, with defaults for those not given.
namespace flashmask::cli {

using Numbers = std::vector<std::int64_t>;

[[noreturn]] void refuse_option(const std::string& option, const std::string& given, const std::string& expected);

/// "2:5,6:8" → {2, 5}, {6, 8}. `such_as` is an example for the message.
std::vector<std::pair<std::int64_t, std::int64_t>> parse_pairs(const std::string& text, const std::string& option,
                                                               const std::string& such_as);

std::int64_t sum(const Numbers& numbers);

std::int64_t tokens_or(const MaskArguments& given, std::int64_t otherwise);
std::int64_t tokens_of(const MaskArguments& given);
std::int64_t columns_of(const MaskArguments& given);
std::int64_t heads_of(const MaskArguments& given);
std::int64_t buckets_of(const MaskArguments& given);
std::uint64_t seed_of(const MaskArguments& given);

}  // namespace flashmask::cli
