// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cuda/compile/cache.h"
#include "cuda/compile/nvrtc.h"
#include "flashmask/compiled_kernels.h"
#include "plan/compile_kernels.h"

namespace flashmask::cuda::compile {

/// Returns the text of a job's file: the headers of `code`, and struct Change.
std::string text_of(const KernelCode& code, const std::string& change);

/// A job's code, and where it was found.
struct FoundCode {
  Code code;
  KernelOrigin origin;
};

/// Calls make(name) for the names of `code` until one is good enough: spills of a few bytes cost nothing that is seen.
/// Returns what that one, or the one with the fewest, has made, and its name.
std::pair<FoundCode, std::string> best_code(const KernelCode& code,
                                            const std::function<FoundCode(const std::string&)>& make);

/// Returns a job's code: from the cache, or compiled by the process's NVRTC and kept there. Says on stderr that it is
/// compiling once that has taken a second, unless FLASHMASK_LOG is off; of jobs that run side by side, one says so.
/// Throws as nvrtc() and Nvrtc::compile() do.
FoundCode code_of(const Job& job, const Cache& cache);

/// Calls compile() as code_of() calls NVRTC's; `version` is that of the compiler.
FoundCode code_of(const Job& job, const Cache& cache, const std::string& version,
                  const std::function<Code(const Job&)>& compile);

}  // namespace flashmask::cuda::compile
