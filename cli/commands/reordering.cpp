// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/reordering.h"

#include <nlohmann/json.hpp>

#include "cli/base/quantities.h"

namespace flashmask::cli {

ReorderReport report_of(const Reordering& reordering) {
  return {reordering.gained, reordering.tile, reordering.tiles_before, reordering.tiles_after, reordering.why};
}

std::string to_text(const ReorderReport& report) {
  if (report.taken) return "taken: " + report.why;
  return "not taken: " + report.why + "; " + with_commas(report.tiles_before) + " active tiles stay";
}

nlohmann::ordered_json to_json(const ReorderReport& report) {
  return {{"taken", report.taken},
          {"tile", {report.tile.rows, report.tile.columns}},
          {"tiles_before", report.tiles_before},
          {"tiles_after", report.tiles_after},
          {"why", report.why}};
}

}  // namespace flashmask::cli
