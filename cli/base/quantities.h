// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// Numbers as people read them.
namespace flashmask::cli {

std::string with_commas(std::int64_t number);    ///< 16,384
std::string fixed(double number, int decimals);  ///< 0.42
std::string significant(double number);          ///< three digits: 1.23e-06, 41.5
std::string percent(double fraction);            ///< 0.42 %, 31.2 %
std::string bytes(double count);                 ///< 131 KB, 1.07 GB (powers of 1000)
std::string seconds(double duration);            ///< 2.31 ms, 41 µs, 1.2 s

}  // namespace flashmask::cli
