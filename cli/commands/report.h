// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "flashmask/tensor.h"
#include "kit/kernel_check.h"
#include "kit/promises.h"

namespace flashmask::cli {

/// What `check --report` found out about this machine, as docs/machines.md describes it.
struct Report {
  std::vector<check::KernelVerdict> kernels;
  std::vector<check::Promise> promises;

  bool passes() const;
};

/// Times attention under two masks, adds what the machine is and what `report` found, and returns all of it; nothing in
/// it is personal. Devices: the CPU, and the first GPU where there is one.
nlohmann::ordered_json json_of(const Report& report, const std::vector<Device>& devices);

/// How to send the report that lies in `file`.
std::string how_to_send(const std::string& file);

}  // namespace flashmask::cli
