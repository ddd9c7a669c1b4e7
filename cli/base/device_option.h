// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/tensor.h"

namespace flashmask::cli {

/// --device cpu, cuda or cuda:N. Nothing was given: nothing. A device that the machine lacks is refused.
void add_device_option(Subcommand& sub, std::optional<Device>& device, const std::string& usual,
                       const std::string& group = "Options");

/// What a device is called in a report: its name and, of a CPU, the threads.
std::string description_of(Device device);

}  // namespace flashmask::cli
