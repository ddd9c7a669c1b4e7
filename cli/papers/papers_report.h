// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/papers/papers_bench.h"
#include "cli/papers/papers_chart.h"

namespace flashmask::cli {

/// The heads that are timed, and the batch entries: "4 x 32 heads".
std::string heads_text(const PapersPlace& place);

/// One table, with a heading.
std::string papers_table(const std::vector<PapersResult>& results);

nlohmann::ordered_json papers_json(const std::vector<PapersResult>& results);

/// A line for each mask that is plotted over its lengths, and one for its reordered version.
std::vector<SpeedupLine> speedup_lines(const std::vector<PapersResult>& results);

}  // namespace flashmask::cli
