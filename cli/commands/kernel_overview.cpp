// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/kernel_overview.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "cli/base/names.h"
#include "cli/base/table.h"

namespace flashmask::cli {
namespace {

using Group = std::vector<KernelOnMachine>;

bool runs(const KernelOnMachine& kernel) { return kernel.why_not.empty(); }

/// A kernel's largest head dims: "64", or "192v128" where values have another one.
std::string head_dims_of(const KernelInfo& kernel) {
  const std::string head = std::to_string(kernel.head_dim);
  return kernel.value_dim == kernel.head_dim ? head : head + "v" + std::to_string(kernel.value_dim);
}

/// Head dims of the kernels of `arch` that run, or of all of them if none does.
std::string head_dims_text(const Group& group, const std::string& arch, bool running) {
  std::vector<std::string> dims;
  for (const KernelOnMachine& kernel : group) {
    const std::string dim = head_dims_of(kernel.info);
    const bool known = std::find(dims.begin(), dims.end(), dim) != dims.end();
    if (kernel.info.arch == arch && runs(kernel) == running && !known) dims.push_back(dim);
  }
  return join(dims);
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

std::vector<std::string> line_of(const Group& group, const std::string& arch) {
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
          running ? "yes" : "no: " + shown.why_not};
}

}  // namespace

std::string kernel_overview(const std::vector<KernelOnMachine>& kernels) {
  std::map<std::tuple<DeviceType, Direction, DType>, Group> groups;
  for (const KernelOnMachine& kernel : kernels) {
    const KernelInfo& info = kernel.info;
    groups[{info.device, info.direction, info.dtype}].push_back(kernel);
  }
  using enum Table::Align;
  Table table({left, left, left, left, left, left});
  table.add({"device", "direction", "dtype", "kernels", "head dims up to", "runs here"});
  for (const auto& [key, group] : groups) {
    for (const std::string& arch : families_of(group)) table.add(line_of(group, arch));
  }
  return table.text();
}

}  // namespace flashmask::cli
