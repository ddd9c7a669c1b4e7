// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/partition.h"

namespace flashmask {

/// Throws unless the mask has as many rows, and columns, as the partition has tokens.
void check_mask_of(const char* function, const Partition& partition, const Mask& mask);

void check_rank(const char* function, const Partition& partition, std::int32_t rank);

/// Throws if a number that prices depend on is out of range.
void check_options(const PartitionOptions& options);

}  // namespace flashmask
