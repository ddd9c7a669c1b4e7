// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/masks/mask_arguments.h"

namespace flashmask::cli {

/// The families whose masks need bits.
const std::vector<MaskFamily>& sparse_families();

}  // namespace flashmask::cli
