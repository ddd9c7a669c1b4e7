// SPDX-License-Identifier: Apache-2.0
#include "cuda/compile/compiled_kernel.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <span>

#include "cuda/compile/compile.h"
#include "cuda/compile/kernel_table.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "flashmask/device_plan.h"
#include "flashmask/error.h"
#include "plan/kernel.h"

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

std::string architecture_of(Device device) {
  const ComputeCapability capability = device_facts(device).capability;
  return "sm_" + std::to_string(10 * capability.major + capability.minor);
}

/// What a kernel is compiled from, with struct Change as `change` has it.
compile::Job job_of(const KernelCode& code, const std::string& name, const std::string& change,
                    const std::string& architecture, const Problem& problem) {
  return {.text = compile::text_of(code, change),
          .kernel = name,
          .architecture = architecture == "sm_90" ? "sm_90a" : architecture,  // a: with Hopper's own instructions
          .made_for = problem.change.text()};
}

CompiledKernel facts_of(const std::string& name, const compile::FoundCode& made) {
  return {.name = compile::short_name(name),
          .origin = made.origin,
          .spilled = made.code.spilled,
          .compiler = compile::nvrtc().name()};
}

void refuse_capture(const Problem& problem, void* stream) {
  if (stream_capture(problem.device, stream) == 0) return;
  throw Error(Status::unsupported,
              "plan: this change of scores has no compiled kernel yet, which cannot be made while a CUDA graph is "
              "captured; make the plan, or run once, before");
}

/// Returns the kernel of `code` as compiled_kernel() does, with how it came about. Where it is not there, make(rest)
/// makes it, by rest(), which compiles and loads it.
template <class Make>
compile::LoadedKernel loaded_kernel(const KernelCode& code, const Problem& problem, const TensorForms& forms,
                                    void* stream, const Make& make) {
  static auto& table = *new compile::KernelTable;  // never destroyed: threads may be calling while the process ends
  const std::string change = compile::change_text(problem.change, forms),
                    architecture = architecture_of(problem.device);
  const auto compile_and_load = [&] {
    const CurrentDevice current(problem.device);
    const compile::Cache cache(kernel_cache_folder());
    const auto [made, name] = compile::best_code(code, [&](const std::string& each) {
      return compile::code_of(job_of(code, each, change, architecture, problem), cache);
    });
    return compile::LoadedKernel{load(made.code), facts_of(name, made)};
  };
  return table.find_or_make(architecture + code.names.front() + change, [&] {
    refuse_capture(problem, stream);
    return make(compile_and_load);
  });
}
compile::LoadedKernel loaded_kernel(const KernelCode& code, const Problem& problem, const TensorForms& forms,
                                    void* stream) {
  return loaded_kernel(code, problem, forms, stream, [](const auto& rest) { return rest(); });
}

using Tasks = std::vector<std::function<CompiledKernel()>>;

/// Adds to `tasks` what is compiled of a kernel: task(code) of each.
template <class Task>
void add_tasks(Tasks& tasks, const Kernel& kernel, const Problem& problem, std::size_t block_bytes, const Task& task) {
  for (const KernelCode& code : kernel.compiled_code(problem, block_bytes))
    tasks.push_back([task, code, direction = kernel.info().direction] {
      CompiledKernel made = task(code);
      made.direction = direction;
      return made;
    });
}

}  // namespace

const void* compiled_kernel(const KernelCode& code, const Problem& problem, const TensorForms& forms, void* stream,
                            const Kernel* beside) {
  if (beside == nullptr) return loaded_kernel(code, problem, forms, stream).kernel;
  const auto make = [&](const auto& rest) {
    compile::LoadedKernel made;
    Tasks tasks;
    add_tasks(tasks, *beside, problem, device_facts(problem.device).block_shared_bytes,
              [&](const KernelCode& other) { return loaded_kernel(other, problem, forms, stream).made; });
    tasks.push_back([&] { return (made = rest()).made; });
    compile::side_by_side(tasks);
    return made;
  };
  return loaded_kernel(code, problem, forms, stream, make).kernel;
}

}  // namespace flashmask::cuda

namespace flashmask {

std::vector<CompiledKernel> compile_kernels(std::span<const Kernel* const> kernels, const Problem& problem,
                                            void* stream) {
  const TensorForms forms = usual_forms(problem.change, problem.dtype);
  cuda::Tasks tasks;
  for (const Kernel* kernel : kernels)
    cuda::add_tasks(tasks, *kernel, problem, cuda::device_facts(problem.device).block_shared_bytes,
                    [&](const KernelCode& code) { return cuda::loaded_kernel(code, problem, forms, stream).made; });
  return cuda::compile::side_by_side(tasks);
}

std::vector<CompiledKernel> try_to_compile(std::span<const Kernel* const> kernels, const Problem& problem,
                                           const GpuKind& kind) {
  namespace compile = cuda::compile;
  const compile::Nvrtc& compiler = compile::nvrtc();
  const std::string change = compile::change_text(problem.change, usual_forms(problem.change, problem.dtype));
  const auto task = [&](const KernelCode& code) {
    const auto begin = std::chrono::steady_clock::now();
    const auto [made, name] = compile::best_code(code, [&](const std::string& each) {
      return compile::FoundCode{compiler.compile(cuda::job_of(code, each, change, kind.architecture, problem)),
                                KernelOrigin::compiler};
    });
    CompiledKernel facts = cuda::facts_of(name, made);
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return facts;
  };
  cuda::Tasks tasks;
  for (const Kernel* kernel : kernels) cuda::add_tasks(tasks, *kernel, problem, kind.block_shared_bytes, task);
  return compile::side_by_side(tasks);
}

GpuKind first_gpu() {
  constexpr Device kFirst{DeviceType::cuda, 0};
  if (!cuda::device_refusal(cuda::at_least(0, 0)).empty()) return {};
  const cuda::DeviceFacts& facts = cuda::device_facts(kFirst);
  return {cuda::architecture_of(kFirst), facts.capability, facts.block_shared_bytes, facts.shared_bytes};
}

}  // namespace flashmask
