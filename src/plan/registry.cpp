#include "plan/registry.h"

#include <cstdlib>
#include <iterator>

#include "flashmask/error.h"

namespace flashmask {
namespace {

KernelRows all_kernels() {
  KernelRows rows = cuda_kernels();
  KernelRows cpu = cpu_kernels();
  rows.insert(rows.end(), std::make_move_iterator(cpu.begin()), std::make_move_iterator(cpu.end()));
  return rows;
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

std::string refusal(const Kernel& kernel, const Problem& problem, MaskForm form) {
  std::string reason = form_refusal(kernel.info(), problem, form);
  if (reason.empty()) reason = kernel.refusal();
  if (reason.empty()) reason = kernel.refusal(problem);
  return reason;
}

std::string refusal(const Kernel& kernel, const KernelRequest& request) {
  if (request.deterministic && !kernel.info().deterministic) return "it is not deterministic, which was asked for";
  for (const TileShape tile : {kernel.info().tile, kernel.second_tile().value_or(kernel.info().tile)})
    if (request.block % tile.rows != 0 || request.block % tile.columns != 0)
      return "its tiles of " + std::to_string(tile.rows) + " x " + std::to_string(tile.columns) +
             " do not divide the blocks of " + std::to_string(request.block);
  return refusal(kernel, request.problem, request.form);
}

/// What names have to begin with: "avx2" concerns both directions, "avx2.forward.f32" only the forward.
std::string prefix_of(const KernelRequest& request) {
  const std::string prefix = request.wanted.empty() ? environment("FLASHMASK_KERNEL") : request.wanted;
  const Direction other = request.direction == Direction::forward ? Direction::backward : Direction::forward;
  return prefix.find("." + to_string(other)) == std::string::npos ? prefix : "";
}

std::string candidates_text(const KernelRequest& request, const std::string& prefix) {
  std::string text;
  for (const auto& kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.direction != request.direction || !info.name.starts_with(prefix)) continue;
    if (prefix.empty() && info.dtype != request.problem.dtype) continue;
    text += "\n  " + info.name + ": " + refusal(*kernel, request);
  }
  return text.empty() ? "\n  no kernel of this build has such a name; `flashmask info` lists them" : text;
}

const Kernel& find_row(const char* caller, const KernelInfo& info) {
  for (const auto& kernel : kernel_table())
    if (kernel->info().name == info.name) return *kernel;
  throw Error(Status::invalid_argument, std::string(caller) + ": \"" + info.name + "\" is no kernel of this build");
}

}  // namespace

std::span<const std::unique_ptr<const Kernel>> kernel_table() {
  static const KernelRows rows = all_kernels();
  return rows;
}

const Kernel* find_kernel(const KernelRequest& request) {
  const std::string prefix = prefix_of(request);
  for (const auto& kernel : kernel_table()) {
    const KernelInfo& info = kernel->info();
    if (info.direction == request.direction && info.name.starts_with(prefix) && refusal(*kernel, request).empty())
      return kernel.get();
  }
  return nullptr;
}

std::string no_kernel(const KernelRequest& request) {
  const std::string prefix = prefix_of(request);
  return "no " + to_string(request.direction) + " kernel for " + to_string(request.problem.dtype) + " on " +
         to_string(request.problem.device) + " with a mask of " + to_string(request.form) +
         (prefix.empty() ? "" : " named \"" + prefix + "…\"") + ":" + candidates_text(request, prefix);
}

const Kernel& select_kernel(const KernelRequest& request) {
  const Kernel* kernel = find_kernel(request);
  if (kernel == nullptr) throw Error(Status::unsupported, "plan: " + no_kernel(request));
  return *kernel;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> infos;
  for (const auto& kernel : kernel_table()) infos.push_back(kernel->info());
  return infos;
}

std::string why_not(const KernelInfo& kernel) { return find_row("why_not", kernel).refusal(); }

std::string why_not(const KernelInfo& kernel, const Problem& problem, MaskForm form) {
  return refusal(find_row("why_not", kernel), problem, form);
}

double measure_peak(const KernelInfo& kernel) {
  const Kernel& row = find_row("measure_peak", kernel);
  const std::string reason = row.refusal();
  if (!reason.empty()) throw Error(Status::unsupported, "measure_peak: " + kernel.name + " cannot run here: " + reason);
  return row.measure_peak();
}

}  // namespace flashmask
