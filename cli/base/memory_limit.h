// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace flashmask::cli {

/// Bytes that this process may use: what the machine has, or less where a control group says so.
double memory_limit();

/// Throws Status::out_of_memory when `what` needs more: the system would otherwise kill the process half-way.
void check_memory(double bytes_needed, const std::string& what, const std::string& remedy);

}  // namespace flashmask::cli
