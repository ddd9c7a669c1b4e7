// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "flashmask/error.h"
#include "mask/formula/formula.h"
#include "plan/compile_kernels.h"
#include "plan/copy_to_host.h"
#include "plan/device_plan.h"
#include "plan/gather.h"
#include "plan/kernel.h"
#include "plan/merge.h"
#include "plan/table_entry.h"

// No entry of the kernel table serves a GPU in this build, so plan() refuses before any function below is called; only
// merge() and formulas have no plan.
namespace flashmask {
namespace {

[[noreturn]] void refuse() { throw Error(Status::unsupported, "this build has no CUDA"); }

[[noreturn]] void refuse_tensors(const std::string& call, Device device) {
  throw Error(Status::unsupported,
              call + ": the tensors are on " + to_string(device) + "; expected cpu: this build has no CUDA");
}

}  // namespace

KernelEntries cuda_kernels() { return {}; }

std::size_t device_plan_bytes(const DeviceSource&, const std::vector<MapRequest>&, const MapLimits&) { refuse(); }

std::unique_ptr<const TokenMover> device_mover(const Plan&, void*) { refuse(); }

DevicePlan make_device_plan(const DeviceSource&, const std::vector<MapRequest>&, Device, const PlanPlace&,
                            const MapLimits&) {
  refuse();
}

std::size_t formula_workspace(const Formula&) { refuse(); }
void find_ranges_on_gpu(const Formula&, std::int32_t*, std::int32_t*, void*, Device, void*) { refuse(); }

std::vector<CompiledKernel> compile_kernels(std::span<const Kernel* const>, const Problem&, void*) { refuse(); }
std::vector<CompiledKernel> try_to_compile(std::span<const Kernel* const>, const Problem&, const GpuKind&) { refuse(); }
GpuKind first_gpu() { return {}; }

std::uint64_t stream_capture(Device, void*) { refuse(); }

std::shared_ptr<void> device_memory(Device, void*, std::size_t) { refuse(); }
std::vector<std::byte> copy_to_host(Device, void*, std::span<const std::byte>) { refuse(); }

void merge_on_gpu(const MergeTensors& tensors, const MergeExtent&, void*) { refuse_tensors("merge", tensors.o.device); }

void merge_backward_on_gpu(const MergeGradients& tensors, const MergeExtent&, void*) {
  refuse_tensors("merge_backward", tensors.o.device);
}

}  // namespace flashmask
