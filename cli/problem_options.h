#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli11_app.h"
#include "flashmask/problem.h"

namespace flashmask::cli {

/// The options of a subcommand that runs attention on tensors of its own.
struct ProblemOptions {
  std::int64_t batch = 1;
  std::int64_t seqlen = 4096;
  std::int64_t heads = 8;
  std::optional<std::int64_t> kv_heads;
  std::int64_t head_dim = 64;
  std::string dtype = "f32";
  int threads = 0;
  std::uint64_t seed = 1;
};

void add_problem_options(CLI::App& app, ProblemOptions& options);

/// The problem they describe; checked, and the thread count set. Throws Status::invalid_argument.
Problem apply(const ProblemOptions& options);

DType parse_dtype(const std::string& name);

}  // namespace flashmask::cli
