// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "flashmask/compiled_kernels.h"
#include "flashmask/problem.h"

namespace flashmask {

class Kernel;
struct GpuKind;

/// Code that is compiled for a change of scores: lines of #include, and the expressions that name kernels there, such
/// as f<int>, of which one is taken: the first whose registers suffice, else the one that spills least.
struct KernelCode {
  std::string headers;
  std::vector<std::string> names;
};

/// Makes what Kernel::compiled_code() says of these kernels ready to be launched on the problem's GPU, side by side.
/// `stream`: that of the plan. Throws Status::unsupported where there is no compiler, or where the stream is being
/// captured and a kernel is not loaded yet.
std::vector<CompiledKernel> compile_kernels(std::span<const Kernel* const> kernels, const Problem& problem,
                                            void* stream);

/// Compiles what Kernel::compiled_code() says of these kernels on GPUs of a kind, side by side, whatever is cached, to
/// say how long that takes and what it spills. Throws Status::unsupported where there is no compiler.
std::vector<CompiledKernel> try_to_compile(std::span<const Kernel* const> kernels, const Problem& problem,
                                           const GpuKind& kind);
/// Returns the kind of this machine's first GPU; its architecture is "" where there is none.
GpuKind first_gpu();

}  // namespace flashmask
