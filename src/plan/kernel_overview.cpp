// SPDX-License-Identifier: Apache-2.0
#include "plan/kernel_overview.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <tuple>

#include "base/checks.h"
#include "flashmask/compiled_kernels.h"
#include "flashmask/linear_attention.h"

namespace flashmask {
namespace {

/// Returns lines of cells in aligned columns, two spaces apart.
template <std::size_t kCells>
std::string aligned(const std::vector<std::array<std::string, kCells>>& lines) {
  std::array<std::size_t, kCells> widths{};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < kCells; ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i + 1 < kCells; ++i) text += line[i] + std::string(widths[i] - line[i].size() + 2, ' ');
    text += line.back() + "\n";
  }
  return text;
}

std::string runs_text(const std::string& why_not) { return why_not.empty() ? "yes" : "no: " + why_not; }

using Group = std::vector<KernelOnMachine>;

bool runs(const KernelOnMachine& kernel) { return kernel.why_not.empty(); }

/// A kernel's largest head dims: "64", or "192v128" where values have another one.
std::string head_dims_of(const KernelInfo& kernel) {
  const std::string head = std::to_string(kernel.head_dim);
  return kernel.value_dim == kernel.head_dim ? head : head + "v" + std::to_string(kernel.value_dim);
}

/// The head dims of the kernels of `arch` that run, or of all of them if none does.
std::string head_dims_text(const Group& group, const std::string& arch, bool running) {
  std::vector<std::string> dims;
  std::string text;
  for (const KernelOnMachine& kernel : group) {
    const std::string dim = head_dims_of(kernel.info);
    const bool known = std::find(dims.begin(), dims.end(), dim) != dims.end();
    if (kernel.info.arch != arch || runs(kernel) != running || known) continue;
    text += (dims.empty() ? "" : ", ") + dim;
    dims.push_back(dim);
  }
  return text;
}

/// The architectures that get a line, best first, in the order of the kernel table: on a GPU all that run, since each
/// has its own head dims; on a CPU the best one; the first where none runs.
std::vector<std::string> families_of(const Group& group) {
  std::vector<std::string> running;
  for (const KernelOnMachine& kernel : group) {
    const bool known = std::find(running.begin(), running.end(), kernel.info.arch) != running.end();
    if (runs(kernel) && !known) running.push_back(kernel.info.arch);
  }
  if (running.empty()) return {group.front().info.arch};
  if (group.front().info.device == DeviceType::cpu) running.resize(1);
  return running;
}

std::array<std::string, 6> line_of(const Group& group, const std::string& arch) {
  const auto best = std::find_if(group.begin(), group.end(), [&arch](const KernelOnMachine& kernel) {
    return kernel.info.arch == arch && runs(kernel);
  });
  const bool running = best != group.end();
  const KernelOnMachine& shown = running ? *best : group.front();
  const KernelInfo& info = shown.info;
  return {info.device == DeviceType::cpu ? "cpu" : "cuda",
          to_string(info.direction),
          to_string(info.dtype),
          info.arch,
          head_dims_text(group, info.arch, running),
          runs_text(running ? "" : shown.why_not)};
}

/// As kernel_overview(): for each device and dtype the best kernel that runs.
std::string linear_overview() {
  std::map<std::tuple<DeviceType, DType>, LinearKernelInfo> shown;
  for (const LinearKernelInfo& kernel : linear_kernels()) {
    const auto [found, added] = shown.try_emplace({kernel.device, kernel.dtype}, kernel);
    const bool better = !why_not_linear(found->second.name).empty() && why_not_linear(kernel.name).empty();
    if (!added && better) found->second = kernel;
  }
  std::vector<std::array<std::string, 5>> lines = {
      {"linear attention on", "dtype", "kernels", "head dims up to", "runs here"}};
  for (const auto& [key, kernel] : shown)
    lines.push_back({kernel.device == DeviceType::cpu ? "cpu" : "cuda", to_string(kernel.dtype), kernel.arch,
                     std::to_string(kernel.key_dim), runs_text(why_not_linear(kernel.name))});
  return aligned(lines);
}

std::string linear_list() {
  std::vector<std::array<std::string, 2>> lines = {{"kernels of linear attention", "runs here"}};
  for (const LinearKernelInfo& kernel : linear_kernels())
    lines.push_back({kernel.name, runs_text(why_not_linear(kernel.name))});
  return aligned(lines);
}

/// A moment in local time, such as 2026-11-28 14:05.
std::string date_of(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm local{};
  char text[32];
  localtime_r(&time, &local);
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local)};
}

}  // namespace

std::string describe_cached_kernels() {
  const std::string folder = kernel_cache_folder(), refusal = kernel_cache_refusal();
  if (!refusal.empty()) return (folder.empty() ? "" : folder + ": ") + "no kernels are kept: " + refusal + "\n";
  std::vector<std::array<std::string, 6>> lines = {{"kernel", "GPU", "bytes", "spilled", "made", "for"}};
  const std::vector<CachedKernel> kernels = cached_kernels();
  for (const CachedKernel& kernel : kernels)
    lines.push_back({kernel.name, kernel.architecture, grouped(static_cast<std::int64_t>(kernel.bytes)),
                     std::to_string(kernel.spilled), date_of(kernel.made), kernel.change});
  return folder + ": " + counted(kernels.size(), "kernel") + "\n" + (kernels.empty() ? "" : "\n" + aligned(lines));
}

std::string kernel_overview(const std::vector<KernelOnMachine>& kernels) {
  std::map<std::tuple<DeviceType, Direction, DType>, Group> groups;
  for (const KernelOnMachine& kernel : kernels) {
    const KernelInfo& info = kernel.info;
    groups[{info.device, info.direction, info.dtype}].push_back(kernel);
  }
  std::vector<std::array<std::string, 6>> lines = {
      {"device", "direction", "dtype", "kernels", "head dims up to", "runs here"}};
  for (const auto& [key, group] : groups)
    for (const std::string& arch : families_of(group)) lines.push_back(line_of(group, arch));
  return aligned(lines);
}

std::string kernel_list(const std::vector<KernelOnMachine>& kernels, MaskForm form) {
  std::vector<std::array<std::string, 3>> lines = {{"kernels for masks as " + to_string(form), "tile", "runs here"}};
  for (const auto& [info, why_not] : kernels)
    if (info.predicate == form)
      lines.push_back(
          {info.name, std::to_string(info.tile.rows) + " x " + std::to_string(info.tile.columns), runs_text(why_not)});
  return aligned(lines);
}

std::string describe_kernels(bool every_kernel) {
  std::vector<KernelOnMachine> table;
  for (const KernelInfo& kernel : kernels()) table.push_back({kernel, why_not(kernel)});
  if (!every_kernel) return kernel_overview(table) + "\n" + linear_overview();
  return kernel_list(table, MaskForm::intervals) + "\n" + kernel_list(table, MaskForm::bits) + "\n" + linear_list();
}

}  // namespace flashmask
