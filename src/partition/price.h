// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "flashmask/partition.h"

namespace flashmask {

/// Predicts the nanoseconds of an attention call, forward and backward.
class Prices {
 public:
  explicit Prices(const PartitionOptions& options)
      // Two matrix products forward and five backward, with 2 operations per score and head dim.
      : tile_(std::max<std::int64_t>(1, std::int64_t{14} * options.tile * options.tile * options.head_dim *
                                            options.query_heads / options.flops_per_ns)),
        // k and v, fetched in the forward and again in the backward, and their gradients sent back in float32.
        column_bytes_(options.kv_heads * options.head_dim * (4 * options.element_bytes + 8)),
        bytes_per_ns_(options.bytes_per_ns),
        node_bytes_per_ns_(options.node_bytes_per_ns),
        exchanges_(3 * options.exchange_ns) {}

  /// Returns the time under a mask of this shape.
  PredictedTime time(std::span<const RankLoad> loads, const MaskShape& mask) const;

  /// Returns the time of `work`, counted in tiles over all heads of a mask.
  std::int64_t attention(std::int64_t work, std::int64_t mask_heads) const {
    return work * tile_ / std::max<std::int64_t>(mask_heads, 1);
  }
  /// Returns the time to send `count` columns, without the cost of the exchanges.
  std::int64_t columns(std::int64_t count) const { return count * column_bytes_ / bytes_per_ns_; }
  /// Returns the time to send `count` columns between nodes.
  std::int64_t between_nodes(std::int64_t count, std::int64_t batch) const {
    return count * batch * column_bytes_ / node_bytes_per_ns_;
  }
  /// Returns the time of the exchanges and the columns they carry; 0 if no rank fetches anything: then there is no
  /// exchange.
  std::int64_t wire(std::int64_t count, std::int64_t batch) const {
    return count == 0 ? 0 : columns(count * batch) + exchanges_;
  }

 private:
  std::int64_t tile_;
  std::int64_t column_bytes_;
  std::int64_t bytes_per_ns_;
  std::int64_t node_bytes_per_ns_;
  std::int64_t exchanges_;
};

}  // namespace flashmask
