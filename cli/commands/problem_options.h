// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/mask_shape.h"
#include "flashmask/problem.h"

namespace flashmask::cli {

/// The options of a subcommand that runs attention on its own tensors.
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

/// Adds the options. Help for --seqlen shows `usual_seqlen`, which must be set before.
void add_problem_options(Subcommand& sub, ProblemOptions& options);

/// The problem that the options describe for a mask: rows and columns of the mask, and its batch unless --batch is
/// given. Validates the problem and sets the thread count. Throws Status::invalid_argument, or Status::out_of_memory.
Problem apply(const ProblemOptions& options, const MaskShape& mask);

/// Throws Status::invalid_argument where --seqlen contradicts the rows of a mask.
void check_seqlen(const ProblemOptions& options, const MaskShape& mask, const std::string& name);

DType parse_dtype(const std::string& name);

}  // namespace flashmask::cli
