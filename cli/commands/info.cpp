// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/base/names.h"
#include "cli/base/quantities.h"
#include "cli/base/table.h"
#include "cli/commands/subcommands.h"
#include "cli/commands/version.h"
#include "flashmask/executor.h"
#include "flashmask/kernels.h"
#include "flashmask/linear_attention.h"
#include "kit/device_memory.h"

namespace flashmask::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  bool all = false, json = false;
};

Json features_json(Features features) {
  Json names = Json::array();
  for (int i = 0; i < kFeatureCount; ++i)
    if (features.has(static_cast<Feature>(i))) names.push_back(to_string(static_cast<Feature>(i)));
  return names;
}

Json kernel_json(const KernelInfo& kernel) {
  const std::string refused = why_not(kernel);
  return {{"name", kernel.name},
          {"arch", kernel.arch},
          {"direction", to_string(kernel.direction)},
          {"dtype", to_string(kernel.dtype)},
          {"tile", {kernel.tile.rows, kernel.tile.columns}},
          {"head_dim", kernel.head_dim},
          {"value_dim", kernel.value_dim},
          {"features", features_json(kernel.features)},
          {"predicate", to_string(kernel.predicate)},
          {"runs", refused.empty()},
          {"why_not", refused}};
}

Json linear_json(const LinearKernelInfo& kernel) {
  const std::string refused = why_not_linear(kernel.name);
  return {{"name", kernel.name},       {"arch", kernel.arch},           {"dtype", to_string(kernel.dtype)},
          {"key_dim", kernel.key_dim}, {"value_dim", kernel.value_dim}, {"runs", refused.empty()},
          {"why_not", refused}};
}

Json device_json(const check::DeviceFacts& device) {
  return {{"name", device.name},
          {"capability", {device.major, device.minor}},
          {"multiprocessors", device.multiprocessors},
          {"bytes", device.bytes}};
}

Json info_json() {
  Json devices = Json::array();
  for (const check::DeviceFacts& device : check::cuda_devices()) devices.push_back(device_json(device));
  Json table = Json::array();
  for (const KernelInfo& kernel : kernels()) table.push_back(kernel_json(kernel));
  Json linear = Json::array();
  for (const LinearKernelInfo& kernel : linear_kernels()) linear.push_back(linear_json(kernel));
  return {{"version", version()},
          {"build", build()},
          {"instruction_sets", instruction_sets()},
          {"threads", default_executor().workers()},
          {"cuda_devices", devices},
          {"kernels", table},
          {"linear_kernels", linear}};
}

std::string device_text(const check::DeviceFacts& device) {
  return device.name + ", compute capability " + std::to_string(device.major) + "." + std::to_string(device.minor) +
         ", " + std::to_string(device.multiprocessors) + " multiprocessors, " +
         bytes(static_cast<double>(device.bytes));
}

bool built_for_gpus() {
  const std::vector<KernelInfo> all = kernels();
  return std::any_of(all.begin(), all.end(), [](const KernelInfo& info) { return info.device == DeviceType::cuda; });
}

std::string facts_table() {
  Table table({Table::Align::left, Table::Align::left});
  table.add({"version", version()});
  table.add({"build", build()});
  table.add({"instruction sets", join(instruction_sets())});
  table.add({"threads", std::to_string(default_executor().workers())});
  if (!built_for_gpus()) table.add({"cuda", "none: this build has no CUDA"});
  int index = 0;
  for (const check::DeviceFacts& device : check::cuda_devices())
    table.add({to_string(Device{DeviceType::cuda, index++}), device_text(device)});
  return table.text() + "\n";
}

std::string info_text() {
  return facts_table() + describe_kernels() + "\nevery kernel by name: flashmask info --all\n";
}

std::string all_text() { return facts_table() + describe_kernels(true); }

}  // namespace

void add_info(CLI::App& command, Console& console, int&) {
  Subcommand sub(command, "info", "What this build and this machine can do");
  const auto options = std::make_shared<InfoOptions>();
  sub.flag("--all", options->all, "Print every kernel by name");
  sub.flag("--json", options->json, "Print JSON, with every kernel");
  sub.on_run([options, &console] {
    console.out << (options->json ? info_json().dump(2) + "\n" : options->all ? all_text() : info_text());
  });
}

}  // namespace flashmask::cli
