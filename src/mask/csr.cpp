// SPDX-License-Identifier: Apache-2.0
#include "mask/csr.h"

#include <cstddef>

#include "base/checks.h"

namespace flashmask {
namespace {

void check_offsets(const std::string& function, std::int64_t rows, std::span<const std::int64_t> offsets,
                   std::size_t entries) {
  if (offsets.size() != static_cast<std::size_t>(rows) + 1) {
    refuse(function + ": offsets has " + counted(offsets.size(), "value") + "; give rows + 1, which is " +
           grouped(rows + 1));
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : offsets[i - 1];
    const std::int64_t most = i == 0 ? 0 : static_cast<std::int64_t>(entries);
    if (offsets[i] >= least && offsets[i] <= most) continue;
    refuse(function + ": offsets[" + std::to_string(i) + "] is " + grouped(offsets[i]) + "; give " +
           (i == 0 ? "0" : "a value from " + grouped(least) + " to " + grouped(most)));
  }
  if (offsets.back() != static_cast<std::int64_t>(entries)) {
    refuse(function + ": the last offset is " + grouped(offsets.back()) + " but column_indices has " +
           counted(entries, "value") + "; give as many");
  }
}

}  // namespace

void check_csr(const std::string& function, CsrSize size, std::span<const std::int64_t> offsets,
               std::span<const std::int64_t> column_indices) {
  check_offsets(function, size.rows, offsets, column_indices.size());
  for (std::size_t i = 0; i < column_indices.size(); ++i) {
    if (column_indices[i] >= 0 && column_indices[i] < size.columns) continue;
    refuse(function + ": column_indices[" + std::to_string(i) + "] is " + grouped(column_indices[i]) +
           "; give a column from 0 to below " + grouped(size.columns));
  }
}

}  // namespace flashmask
