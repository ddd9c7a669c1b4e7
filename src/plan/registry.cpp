// SPDX-License-Identifier: Apache-2.0
#include "plan/registry.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>

#include "flashmask/error.h"

namespace flashmask {
namespace {

struct Table {
  KernelEntries entries = cuda_kernels();
  std::vector<const Kernel*> attention;
  std::vector<const LinearKernel*> linear;

  Table() {
    append(entries, cpu_kernels());
    for (const auto& entry : entries)
      if (const auto* kernel = dynamic_cast<const Kernel*>(entry.get()))
        attention.push_back(kernel);
      else
        linear.push_back(&dynamic_cast<const LinearKernel&>(*entry));
  }
};

const Table& table() {
  // Never destroyed: other threads may be calling while the process ends.
  static const Table& made = *new Table;
  return made;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string form_refusal(const KernelInfo& info, const Problem& problem, MaskForm form) {
  if (info.device != problem.device.type) return "it runs on another kind of device than " + to_string(problem.device);
  if (info.dtype != problem.dtype) return "it computes " + to_string(info.dtype) + ", not " + to_string(problem.dtype);
  if (info.predicate != form) return "it reads masks as " + to_string(info.predicate) + ", not " + to_string(form);
  return "";
}

std::string size_refusal(const KernelInfo& info, const Problem& problem) {
  if (problem.head_dim <= info.head_dim && problem.value_dim <= info.value_dim) return "";
  return "head dims are (" + std::to_string(problem.head_dim) + ", " + std::to_string(problem.value_dim) +
         "); it takes up to (" + std::to_string(info.head_dim) + ", " + std::to_string(info.value_dim) + ")";
}

Features all_needed(const KernelRequest& request) { return required(request.problem) | request.needed; }

std::string feature_refusal(const KernelInfo& info, Features needed) {
  const std::uint32_t missing = needed.bits() & ~info.features.bits();
  return missing == 0 ? "" : "it has no " + to_string(static_cast<Feature>(std::countr_zero(missing)));
}

std::string block_refusal(const Kernel& kernel, std::int64_t block) {
  if (block == 0) return "";
  std::vector<TileShape> tiles = {kernel.info().tile};
  for (const MapRequest& map : kernel.maps()) tiles.push_back(map.tile);
  for (const TileShape tile : tiles)
    if (block % tile.rows != 0 || block % tile.columns != 0)
      return "its tiles of " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns) +
             " do not divide the blocks of " + std::to_string(block);
  return "";
}

/// Returns what kernel names must begin with: "avx2" concerns both directions, "avx2.forward.f32" only the forward.
std::string prefix_of(const KernelRequest& request) {
  const std::string prefix = request.wanted.empty() ? environment("FLASHMASK_KERNEL") : request.wanted;
  const Direction other = request.direction == Direction::forward ? Direction::backward : Direction::forward;
  return prefix.find("." + to_string(other)) == std::string::npos ? prefix : "";
}

/// `prefix` is what names must begin with. A prefix that begins with the whole name of an instruction set asks for it.
std::string machine_refusal(const Kernel& kernel, const std::string& prefix) {
  const std::string reason = kernel.refusal();
  const bool named = (prefix + ".").starts_with(kernel.info().arch + ".");
  return reason.empty() && !named ? kernel.reservation() : reason;
}

/// Returns the first reason: what an entry is for, then its sizes and features.
std::string request_refusal(const Kernel& kernel, const KernelRequest& request) {
  const KernelInfo& info = kernel.info();
  std::string reason = form_refusal(info, request.problem, request.form);
  if (reason.empty()) reason = size_refusal(info, request.problem);
  if (reason.empty()) reason = feature_refusal(info, all_needed(request));
  if (reason.empty()) reason = block_refusal(kernel, request.block);
  return reason;
}

/// Returns the first reason: what request_refusal() says, then the machine, and last what only the entry knows.
std::string refusal(const Kernel& kernel, const KernelRequest& request) {
  std::string reason = request_refusal(kernel, request);
  if (reason.empty()) reason = machine_refusal(kernel, prefix_of(request));
  if (reason.empty()) reason = kernel.refusal(request.problem);
  if (reason.empty()) reason = kernel.lacks(request.problem);
  return reason;
}

std::string candidates_text(const KernelRequest& request, const std::string& prefix) {
  std::string text;
  for (const Kernel* kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.direction != request.direction || !info.name.starts_with(prefix)) continue;
    if (prefix.empty() && info.dtype != request.problem.dtype) continue;
    text += "\n  " + info.name + ": " + refusal(*kernel, request);
  }
  return text.empty() ? "\n  no kernel of this build has such a name; `flashmask info` lists them" : text;
}

/// Returns a sentence if a device can run no entry of its kind, with the reason of the last one, which needs least.
/// Only for GPUs can a build have no entries.
std::string why_none_runs_on(Device device) {
  std::string reason = "it has no CUDA; build it where nvcc, CUDA's compiler, is on the PATH";
  for (const Kernel* kernel : kernel_table()) {
    if (kernel->info().device != device.type) continue;
    reason = kernel->refusal(device);
    if (reason.empty()) return "";
  }
  return reason.empty() ? "" : "no kernel of this build runs on " + to_string(device) + ": " + reason;
}

/// Returns a sentence if there are kernels for such devices and none computes the dtype.
std::string why_none_computes(const Problem& problem) {
  std::vector<DType> computed;
  for (const Kernel* kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.device == problem.device.type && std::ranges::find(computed, info.dtype) == computed.end())
      computed.push_back(info.dtype);
  }
  if (computed.empty() || std::ranges::find(computed, problem.dtype) != computed.end()) return "";
  std::string names;
  for (const DType dtype : computed) names += (names.empty() ? "" : " and ") + to_string(dtype);
  return "kernels on " + to_string(problem.device) + " compute " + names + ", not " + to_string(problem.dtype) +
         ": cast q, k and v to one of them, or compute on the CPU";
}

Features of_any_kernel(DeviceType device) {
  Features had;
  for (const Kernel* kernel : kernel_table())
    if (kernel->info().device == device) had = had | kernel->info().features;
  return had;
}

/// Returns a sentence if no kernel for such devices has a feature that kernels for the CPU have.
std::string why_none_has(Features needed, Device device) {
  const std::uint32_t missing =
      needed.bits() & of_any_kernel(DeviceType::cpu).bits() & ~of_any_kernel(device.type).bits();
  if (missing == 0) return "";
  return "kernels on " + to_string(device) + " have no " + to_string(static_cast<Feature>(std::countr_zero(missing))) +
         ": leave it out, or compute on the CPU";
}

const Kernel& find_entry(const char* caller, const KernelInfo& info) {
  for (const Kernel* kernel : kernel_table())
    if (kernel->info().name == info.name) return *kernel;
  throw Error(Status::invalid_argument, std::string(caller) + ": \"" + info.name + "\" is no kernel of this build");
}

}  // namespace

std::span<const Kernel* const> kernel_table() { return table().attention; }
std::span<const LinearKernel* const> linear_kernel_table() { return table().linear; }

const Kernel* find_kernel(const KernelRequest& request) {
  const std::string prefix = prefix_of(request);
  for (const Kernel* kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.direction == request.direction && info.name.starts_with(prefix) && refusal(*kernel, request).empty())
      return kernel;
  }
  return nullptr;
}

const Kernel* find_kernel(const KernelRequest& request, const GpuKind& kind) {
  const std::string prefix = prefix_of(request);
  for (const Kernel* kernel : kernel_table())
    if (kernel->info().direction == request.direction && kernel->info().name.starts_with(prefix) &&
        request_refusal(*kernel, request).empty() && kernel->refusal(kind).empty() &&
        kernel->refusal(request.problem).empty())
      return kernel;
  return nullptr;
}

std::string no_kernel(const KernelRequest& request) {
  if (const std::string reason = why_none_runs_on(request.problem.device); !reason.empty()) return reason;
  if (const std::string reason = why_none_computes(request.problem); !reason.empty()) return reason;
  if (const std::string reason = why_none_has(all_needed(request), request.problem.device); !reason.empty())
    return reason;
  const std::string prefix = prefix_of(request);
  for (const Kernel* kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.direction != request.direction || !info.name.starts_with(prefix)) continue;
    const std::string lacks = kernel->lacks(request.problem);
    if (!lacks.empty() && refusal(*kernel, request) == lacks) return lacks;
  }
  std::string features;
  for (std::uint32_t bits = all_needed(request).bits(); bits != 0; bits &= bits - 1)
    features += ", " + to_string(static_cast<Feature>(std::countr_zero(bits)));
  return "no " + to_string(request.direction) + " kernel for " + to_string(request.problem.dtype) + " on " +
         to_string(request.problem.device) + " with a mask of " + to_string(request.form) + features +
         (prefix.empty() ? "" : " named \"" + prefix + "…\"") + ":" + candidates_text(request, prefix);
}

const Kernel& select_kernel(const KernelRequest& request) {
  const Kernel* kernel = find_kernel(request);
  if (kernel == nullptr) throw Error(Status::unsupported, "plan: " + no_kernel(request));
  return *kernel;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> infos;
  for (const Kernel* kernel : kernel_table()) infos.push_back(kernel->info());
  return infos;
}

std::string why_not(const KernelInfo& kernel) {
  return machine_refusal(find_entry("why_not", kernel), environment("FLASHMASK_KERNEL"));
}

std::string why_not(const KernelInfo& kernel, const Problem& problem, MaskForm form) {
  const std::string any_name;
  return refusal(find_entry("why_not", kernel), {kernel.direction, problem, form, any_name});
}

double measure_peak(const KernelInfo& kernel) {
  const Kernel& row = find_entry("measure_peak", kernel);
  const std::string reason = row.refusal();
  if (!reason.empty()) throw Error(Status::unsupported, "measure_peak: " + kernel.name + " cannot run here: " + reason);
  return row.measure_peak();
}

}  // namespace flashmask
