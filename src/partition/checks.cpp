// SPDX-License-Identifier: Apache-2.0
#include "partition/checks.h"

#include <string>
#include <utility>

#include "base/checks.h"

namespace flashmask {

void check_mask_of(const char* function, const Partition& partition, const Mask& mask) {
  const MaskShape& shape = mask.shape();
  if (shape.rows == partition.tokens() && shape.columns == partition.tokens()) return;
  refuse(std::string(function) + ": the mask is " + grouped(shape.rows) + " x " + grouped(shape.columns) +
         " but the partition has " + grouped(partition.tokens()) + " tokens; give the mask that was partitioned");
}

void check_rank(const char* function, const Partition& partition, std::int32_t rank) {
  if (rank >= 0 && rank < partition.ranks()) return;
  refuse(std::string(function) + ": rank is " + grouped(rank) + "; give 0 to " + grouped(partition.ranks() - 1));
}

void check_options(const PartitionOptions& options) {
  const std::pair<const char*, std::int64_t> numbers[] = {
      {"tile", options.tile},
      {"query_heads", options.query_heads},
      {"kv_heads", options.kv_heads},
      {"head_dim", options.head_dim},
      {"element_bytes", options.element_bytes},
      {"flops_per_ns", options.flops_per_ns},
      {"bytes_per_ns", options.bytes_per_ns},
      {"node_bytes_per_ns", options.node_bytes_per_ns},
  };
  for (const auto& [name, value] : numbers) {
    if (value < 1) refuse("partition: " + std::string(name) + " is " + grouped(value) + "; give at least 1");
  }
  if (options.query_heads % options.kv_heads != 0) {
    refuse("partition: query_heads is " + grouped(options.query_heads) + "; give a multiple of kv_heads, which is " +
           grouped(options.kv_heads));
  }
  if (options.exchange_ns < 0)
    refuse("partition: exchange_ns is " + grouped(options.exchange_ns) + "; give at least 0");
}

}  // namespace flashmask
