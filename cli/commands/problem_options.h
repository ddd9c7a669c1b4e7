// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/mask_shape.h"
#include "flashmask/problem.h"

namespace flashmask::cli {

/// The options of a subcommand that runs attention on tensors of its own.
struct ProblemOptions {
  std::optional<std::int64_t> batch, seqlen;
  std::int64_t usual_seqlen = 4096;
  std::int64_t heads = 8;
  std::optional<std::int64_t> kv_heads;
  std::int64_t head_dim = 64;
  std::string dtype = "f32";
  std::optional<Device> device;
  int threads = 0;
  std::uint64_t seed = 1;
};

/// --seqlen says its usual value, which must be set before.
void add_problem_options(Subcommand& sub, ProblemOptions& options);

/// The problem they describe over a mask: its rows, its columns, and its batch where --batch says none. Checked, and
/// the thread count set. Throws Status::invalid_argument.
Problem apply(const ProblemOptions& options, const MaskShape& mask);

/// Throws Status::invalid_argument where --seqlen contradicts the rows of a mask.
void check_seqlen(const ProblemOptions& options, const MaskShape& mask, const std::string& name);

DType parse_dtype(const std::string& name);

}  // namespace flashmask::cli
