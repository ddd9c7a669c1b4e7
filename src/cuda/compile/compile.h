// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cuda/compile/cache.h"
#include "cuda/compile/nvrtc.h"

namespace flashmask::cuda::compile {

/// Returns a job's code: from the cache, or compiled by the process's NVRTC and kept there. Says on stderr that it is
/// compiling once that has taken a second, unless FLASHMASK_LOG is off. Throws as nvrtc() and Nvrtc::compile() do.
Code code_of(const Job& job, const Cache& cache);

/// Calls compile() as code_of() calls NVRTC's; `version` is that of the compiler.
Code code_of(const Job& job, const Cache& cache, const std::string& version,
             const std::function<Code(const Job&)>& compile);

}  // namespace flashmask::cuda::compile
