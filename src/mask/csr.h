// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace flashmask {

struct CsrSize {
  std::int64_t rows;
  std::int64_t columns;
};

/// Checks compressed sparse rows; throws Status::invalid_argument at the first offset or column out of range.
void check_csr(const std::string& function, CsrSize size, std::span<const std::int64_t> offsets,
               std::span<const std::int64_t> column_indices);

}  // namespace flashmask
