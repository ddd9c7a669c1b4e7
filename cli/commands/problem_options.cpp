// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/problem_options.h"

#include "cli/base/device_option.h"
#include "cli/base/memory_limit.h"
#include "flashmask/error.h"
#include "flashmask/executor.h"

namespace flashmask::cli {
namespace {

/// Bytes of q, k, v, o, their gradients and lse; a double because the product may exceed 2^63.
double tensor_bytes(const Problem& p) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double queries = number(p.batch) * number(p.query_length) * number(p.query_heads);
  const double keys = number(p.batch) * number(p.key_length) * number(p.kv_heads);
  const double elements = 2 * (queries + keys) * number(p.head_dim + p.value_dim);
  return elements * number(static_cast<std::int64_t>(size_in_bytes(p.dtype))) + 8 * queries;
}

}  // namespace

void add_problem_options(Subcommand& sub, ProblemOptions& options) {
  const std::string group = "Problem";
  sub.option("--batch", options.batch, "Sequences [1, or those of the mask]").at_least(1).group(group);
  const std::string usual = std::to_string(options.usual_seqlen);
  sub.option("--seqlen", options.seqlen, "Tokens of a sequence [" + usual + ", or the rows of a mask file]")
      .at_least(1)
      .group(group);
  sub.option("--heads", options.heads, "Query heads").at_least(1).show_default().group(group);
  sub.option("--kv-heads", options.kv_heads, "Key and value heads, a divisor of --heads [all]")
      .at_least(1)
      .group(group);
  sub.option("--head-dim", options.head_dim, "1 to 512").range(1, 512).show_default().group(group);
  sub.option("--dtype", options.dtype, "f32, bf16 or f16").one_of({"f32", "bf16", "f16"}).show_default().group(group);
  add_device_option(sub, options.device, "cpu", group);
  sub.option("--threads", options.threads, "Threads [as many as the process may use]").range(1, 4096).group(group);
  sub.option("--seed", options.seed, "Seed of the random inputs and of dropout").show_default().group(group);
}

Problem apply(const ProblemOptions& options, const MaskShape& mask) {
  Problem problem;
  problem.batch = options.batch.value_or(mask.batch);
  problem.query_length = mask.rows;
  problem.key_length = mask.columns;
  problem.query_heads = options.heads;
  problem.kv_heads = options.kv_heads.value_or(options.heads);
  problem.head_dim = problem.value_dim = options.head_dim;
  problem.dtype = parse_dtype(options.dtype);
  problem.device = options.device.value_or(Device{});
  validate(problem);
  check_memory(tensor_bytes(problem), "holding the tensors", "give fewer tokens, --heads or --batch");
  set_thread_count(options.threads);
  return problem;
}

void check_seqlen(const ProblemOptions& options, const MaskShape& mask, const std::string& name) {
  if (!options.seqlen || *options.seqlen == mask.rows) return;
  throw Error(Status::invalid_argument, "--seqlen is " + std::to_string(*options.seqlen) + ", but " + name + " has " +
                                            std::to_string(mask.rows) + " rows; leave --seqlen out");
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (to_string(dtype) == name) return dtype;
  }
  throw Error(Status::invalid_argument, "no dtype \"" + name + "\"; the dtypes are f32, bf16 and f16");
}

}  // namespace flashmask::cli
