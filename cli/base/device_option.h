// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/base/subcommand.h"
#include "flashmask/tensor.h"

namespace flashmask::cli {

/// Adds --device: cpu, cuda or cuda:N. Without it `device` stays empty. Refuses a device that the machine lacks.
void add_device_option(Subcommand& sub, std::optional<Device>& device, const std::string& usual,
                       const std::string& group = "Options");

/// Names a device for a report: its name and, for a CPU, the number of threads.
std::string description_of(Device device);

}  // namespace flashmask::cli
