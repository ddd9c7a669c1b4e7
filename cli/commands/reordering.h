// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/commands/dropout_options.h"
#include "flashmask/reorder.h"

namespace flashmask::cli {

/// The result of --reorder.
struct ReorderReport {
  bool taken = false;
  TileShape tile;
  std::int64_t tiles_before = 0, tiles_after = 0;  ///< active tiles
  std::string why;
};

/// Refuses --reorder beside what no plan that reorders takes.
void check_one_plan(const std::string& command, bool reorder, bool invariant, const DropoutOptions& dropout);

ReorderReport report_of(const Reordering& reordering);

std::string to_text(const ReorderReport& report);
nlohmann::ordered_json to_json(const ReorderReport& report);

}  // namespace flashmask::cli
