// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/commands/reordering.h"
#include "cli/commands/sampled_check.h"
#include "flashmask/dropout.h"
#include "flashmask/explain.h"
#include "flashmask/problem.h"

namespace flashmask::cli {

/// Seconds of one way to run the same attention.
struct Times {
  double forward = 0, backward = 0;

  double both() const { return forward + backward; }
};

/// Everything `attend` found out.
struct AttendReport {
  Problem problem;
  std::optional<DropoutState> dropout;
  std::string device;
  std::string forward_kernel, backward_kernel;
  Explanation mask;             ///< tiles of the forward; schedule_bytes covers both directions
  double schedule_seconds = 0;  ///< lowering, reordering, both schedules
  std::optional<ReorderReport> reordering;
  Times times;
  std::optional<Times> dense;  ///< the same kernels reading the mask in every tile
  SampledErrors errors;

  std::int64_t tokens() const { return problem.batch * problem.query_length; }
  double tokens_per_second() const;
  std::optional<double> speed_up() const;
};

/// The report as tables for people.
std::string to_text(const AttendReport& report);

std::string to_json_text(const AttendReport& report);

}  // namespace flashmask::cli
