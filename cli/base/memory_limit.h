// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// Bytes that this process may use: the machine's memory, or less where its control group has a lower limit.
double memory_limit();

/// Throws Status::out_of_memory when `what` needs more: the system would otherwise kill the process half-way.
void check_memory(double bytes_needed, const std::string& what, const std::string& remedy);

}  // namespace flashmask::cli
