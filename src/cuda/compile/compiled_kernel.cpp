// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/compiled_kernel.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <unordered_map>

#include "cuda/compile/compile.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"

namespace flashmask::cuda {
namespace {

/// Returns a function of the driver, looked up at run time, so that the library also loads where there is no driver.
template <class Function>
Function* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &answer),
        "cudaGetDriverEntryPointByVersion");
  if (answer != cudaDriverEntryPointSuccess)
    throw Error(Status::unsupported,
                std::string("the CUDA driver has no ") + name + "; install one of version 12 or newer");
  return reinterpret_cast<Function*>(found);
}

void check_driver(CUresult answer, const char* call) {
  if (answer == CUDA_SUCCESS) return;
  throw Error(answer == CUDA_ERROR_OUT_OF_MEMORY ? Status::out_of_memory : Status::internal,
              "score: loading a compiled kernel: " + std::string(call) + " answered " +
                  std::to_string(static_cast<int>(answer)));
}

/// Loads code for every device that it runs on. What is returned stays loaded while the process runs.
const void* load(const compile::Code& code) {
  static auto* const load_data = driver_function<decltype(cuLibraryLoadData)>("cuLibraryLoadData");
  static auto* const get_kernel = driver_function<decltype(cuLibraryGetKernel)>("cuLibraryGetKernel");
  CUlibrary library{};
  check_driver(load_data(&library, code.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  CUkernel kernel{};
  check_driver(get_kernel(&kernel, library, code.kernel.c_str()), "cuLibraryGetKernel");
  return kernel;  // launched as cudaKernel_t, which is the same type
}

std::string architecture_of(const Problem& problem) {
  const ComputeCapability capability = device_facts(problem.device).capability;
  const int number = 10 * capability.major + capability.minor;
  return "sm_" + std::to_string(number) + (number == 90 ? "a" : "");  // a: with Hopper's own instructions
}

void refuse_capture(const Problem& problem, void* stream) {
  if (stream_capture(problem.device, stream) == 0) return;
  throw Error(Status::unsupported,
              "plan: this change of scores has no compiled kernel yet, which cannot be made while a CUDA graph is "
              "captured; make the plan, or run once, before");
}

/// So few bytes of registers in memory, a thread, cost nothing that is seen.
constexpr int kFewSpills = 16;

/// A kernel of the process's table; the first to ask for it compiles it.
struct Entry {
  std::mutex mutex;
  const void* kernel = nullptr;
  int spilled = 0;
};

Entry& entry_of(const std::string& key) {
  // Never destroyed: other threads may be calling while the process ends.
  static auto& mutex = *new std::mutex;
  static auto& entries = *new std::unordered_map<std::string, Entry>;
  const std::lock_guard lock(mutex);
  return entries[key];
}

/// Returns a kernel's entry, whose kernel is there.
const Entry& loaded(const char* headers, const std::string& name, const Problem& problem, void* stream) {
  const std::string change = compile::change_text(problem.change), architecture = architecture_of(problem);
  Entry& entry = entry_of(architecture + name + change);
  const std::lock_guard lock(entry.mutex);
  if (entry.kernel != nullptr) return entry;
  refuse_capture(problem, stream);
  const CurrentDevice current(problem.device);
  const compile::Cache cache(compile::cache_folder());
  const compile::Code code =
      compile::code_of({.text = std::string(headers) + "namespace flashmask::cuda {\n" + change + "}\n",
                        .kernel = name,
                        .architecture = architecture},
                       cache);
  entry.spilled = code.spilled;
  entry.kernel = load(code);
  return entry;
}

}  // namespace

const void* compiled_kernel(const char* headers, const std::string& name, const Problem& problem, void* stream) {
  return loaded(headers, name, problem, stream).kernel;
}

const void* compiled_kernel(const char* headers, std::span<const std::string> names, const Problem& problem,
                            void* stream) {
  const Entry* best = nullptr;
  for (const std::string& name : names) {
    const Entry& made = loaded(headers, name, problem, stream);
    if (best == nullptr || made.spilled < best->spilled) best = &made;
    if (best->spilled <= kFewSpills) break;
  }
  return best->kernel;
}

}  // namespace flashmask::cuda
