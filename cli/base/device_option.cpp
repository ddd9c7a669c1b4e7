// SPDX-License-Identifier: Apache-2.0
#include "cli/base/device_option.h"

#include <charconv>
#include <string_view>

#include "flashmask/error.h"
#include "flashmask/executor.h"
#include "kit/device_memory.h"

namespace flashmask::cli {
namespace {

Device parse_device(const std::string& name) {
  if (name == "cpu") return {};
  Device device{DeviceType::cuda, 0};
  if (name == "cuda") return device;
  const std::string_view prefix = "cuda:";
  const char* const end = name.data() + name.size();
  const char* const digits = name.data() + prefix.size();
  const bool named = name.starts_with(prefix) && digits != end;
  if (named) {
    const auto [read, error] = std::from_chars(digits, end, device.index);
    if (read == end && error == std::errc() && device.index >= 0) return device;
  }
  throw Error(Status::invalid_argument, "--device is \"" + name + "\"; expected cpu, cuda or cuda:N");
}

}  // namespace

void add_device_option(Subcommand& sub, std::optional<Device>& device, const std::string& usual,
                       const std::string& group) {
  sub.parsed_option(
         "--device",
         [&device](const std::string& name) {
           device = parse_device(name);
           if (device->type == DeviceType::cuda) check::use_device(*device);
         },
         "cpu, cuda or cuda:N [" + usual + "]")
      .group(group);
}

std::string description_of(Device device) {
  if (device.type == DeviceType::cpu)
    return to_string(device) + ", " + std::to_string(default_executor().workers()) + " threads";
  return to_string(device) + ", " + check::cuda_devices().at(static_cast<std::size_t>(device.index)).name;
}

}  // namespace flashmask::cli
