// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashmask/compiled_kernels.h"
#include "flashmask/export.h"
#include "flashmask/kernels.h"
#include "flashmask/score_change.h"

namespace flashmask {

struct ScoreReportOptions {
  std::string architecture = {};  ///< a kind of GPU, which need not be here, such as sm_90; "": the first one here
  std::int64_t head_dim = 64;
  DType dtype = DType::bf16;  ///< on a GPU; on a CPU it is float32
  bool compiles = true;       ///< whether kernels that are compiled for a change are compiled to measure them
};

/// What a change of scores computes, and the kernels that serve it.
struct ScoreReport {
  struct Kernel {
    std::string device;  ///< cpu, or an architecture
    Direction direction;
    std::string name;  ///< "": none serves
    std::string how;   ///< how it changes scores, or why none serves
  };

  std::string text;                  ///< the same for all ways of writing it
  std::string slope;                 ///< the derivative by the score, as an expression
  std::string bias_slope;            ///< the derivative by the bias; "": there is none
  std::vector<std::string> depends;  ///< on what, such as score, h, "operand 0 at 2 indices"
  bool by_distance = false;          ///< whether the query and the key count by their difference alone
  std::vector<Kernel> kernels;       ///< under a mask of intervals
  std::vector<CompiledKernel> compiled;
  std::string not_compiled;  ///< why nothing is compiled; "": something is, or needs not to be
};

/// Reads steps as ScoreChange::parse() does, or an expression as scores::function() does.
FLASHMASK_API ScoreChange read_score(std::string_view text);

/// Throws Status::invalid_argument for an architecture that it does not know.
FLASHMASK_API ScoreReport report(const ScoreChange& change, const ScoreReportOptions& options = {});

/// Formats the report as a table for people to read.
FLASHMASK_API std::string to_string(const ScoreReport& report);

}  // namespace flashmask
