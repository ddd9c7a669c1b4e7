// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "flashmask/tensor.h"

namespace flashmask {

/// Copies memory of a GPU to the host, behind what the stream does already; waits for the stream.
std::vector<std::byte> copy_to_host(Device device, void* stream, std::span<const std::byte> bytes);

}  // namespace flashmask
