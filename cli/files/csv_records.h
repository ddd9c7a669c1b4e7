// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace flashmask::cli {

struct CsvRecord {
  std::int64_t line = 0;  ///< where the record begins, counted from 1
  std::vector<std::string> fields;
};

/// Calls `visit` with every record of an RFC 4180 text; blank lines are not records. Throws
/// Status::invalid_argument with `name` and the line where the quoting goes wrong.
void for_each_record(std::string_view text, std::string_view name, const std::function<void(const CsvRecord&)>& visit);

}  // namespace flashmask::cli
