// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "flashmask/export.h"
#include "flashmask/mask.h"

/// A mask as bytes: its exact lowered form with block map, reason and description, so that it can be saved, sent to
/// another process or held in a framework's tensor. Numbers are in the machine's byte order.
namespace flashmask {

/// Returns how many bytes pack() writes.
FLASHMASK_API std::size_t packed_bytes(const Mask& mask);

/// Writes packed_bytes(mask) bytes. Equal masks give equal bytes.
FLASHMASK_API void pack(const Mask& mask, std::span<std::byte> bytes);

/// Returns the mask that pack() was given. The bytes may come from anywhere and lie at any address: throws
/// Status::invalid_argument, naming what is wrong, unless they hold one mask and nothing else.
FLASHMASK_API Mask unpack(std::span<const std::byte> bytes);

}  // namespace flashmask
