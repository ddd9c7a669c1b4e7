#pragma once

#include <cstdint>
#include <string>

namespace flashmask {

/// 4200 → "4,200".
std::string grouped(std::int64_t value);

/// "1 document", "3 documents".
std::string counted(std::size_t count, const std::string& noun);

/// Throws Status::invalid_argument.
[[noreturn]] void refuse(const std::string& message);

/// Masks index rows and columns with 32 bits: a size is in [0, 2^31).
void check_size(const std::string& function, const std::string& argument, std::int64_t value);

}  // namespace flashmask
