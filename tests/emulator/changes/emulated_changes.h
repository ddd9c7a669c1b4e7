// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/score_change.cuh"
#include "emulator/changes/changes.h"

/// The texts of kEmulatedChanges as the build has generated them (write_changes.cpp).
namespace flashmask::cuda {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wconversion"
#include "emulated_changes.inc"
#pragma GCC diagnostic pop
}  // namespace flashmask::cuda
