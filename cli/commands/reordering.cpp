// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/reordering.h"

#include <nlohmann/json.hpp>

#include "cli/base/quantities.h"
#include "flashmask/error.h"

namespace flashmask::cli {

void check_one_plan(const std::string& command, bool reorder, bool invariant, const DropoutOptions& dropout) {
  if (!reorder || (!invariant && !dropout.given())) return;
  throw Error(Status::invalid_argument,
              command + ": " + (invariant ? "--invariant" : "--dropout") + " and --reorder; a plan takes one of them");
}

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
