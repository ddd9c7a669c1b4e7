#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/papers/papers_bench.h"
#include "cli/papers/papers_chart.h"

namespace flashmask::cli {

/// One table, with a heading.
std::string papers_table(const std::vector<PapersResult>& results);

nlohmann::ordered_json papers_json(const std::vector<PapersResult>& results);

/// A line for each mask that is drawn over its lengths, and one for it reordered.
std::vector<SpeedupLine> speedup_lines(const std::vector<PapersResult>& results);

}  // namespace flashmask::cli
