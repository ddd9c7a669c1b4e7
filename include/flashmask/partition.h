// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/span.h"

namespace flashmask {

/// Consecutive tokens that one rank holds.
struct RankRun {
  Span tokens;
  std::int32_t rank = 0;

  friend bool operator==(const RankRun&, const RankRun&) = default;
};

/// Which tokens each of the ranks that work on one sequence holds: both the query row and the key column of each.
class FLASHMASK_API Partition {
 public:
  /// From runs in any order that together hold each of `tokens` tokens once; empty runs are dropped, and neighbouring
  /// runs of one rank become one. A rank may hold nothing. `why` is one line for people. Throws
  /// Status::invalid_argument, naming the first token that no run holds or that two runs hold.
  Partition(std::int64_t tokens, std::int32_t ranks, std::vector<RankRun> runs, std::int32_t tile = 128,
            std::string why = "given runs");

  std::int64_t tokens() const { return tokens_; }
  std::int32_t ranks() const { return static_cast<std::int32_t>(spans_.size()); }
  /// Side of the tiles that work and traffic are counted in.
  std::int32_t tile() const { return tile_; }
  const std::string& why() const { return why_; }

  /// In ascending order of tokens.
  const std::vector<RankRun>& runs() const { return runs_; }
  /// The tokens that one rank holds, ascending, as slice() takes them.
  const std::vector<Span>& spans(std::int32_t rank) const { return spans_[static_cast<std::size_t>(rank)]; }
  std::int64_t length(std::int32_t rank) const;

  /// Whether all runs begin at multiples of the tile. Attention then visits the tiles that one device would visit.
  bool aligned() const { return grain_ == tile_; }
  /// The largest divisor of the tile that also divides the first token of each run.
  std::int32_t grain() const { return grain_; }

  friend bool operator==(const Partition& a, const Partition& b) {
    return a.tokens_ == b.tokens_ && a.ranks() == b.ranks() && a.tile_ == b.tile_ && a.runs_ == b.runs_;
  }

 private:
  std::int64_t tokens_;
  std::int32_t tile_;
  std::int32_t grain_;
  std::string why_;
  std::vector<RankRun> runs_;
  std::vector<std::vector<Span>> spans_;
};

/// How tokens are shared out.
enum class Division : std::uint8_t {
  balanced,    ///< even tokens and even work, with little traffic; depends on the mask
  contiguous,  ///< one run per rank, in order
  zigzag,      ///< two runs per rank, one from either end
};

/// The cost of a tile follows from the attention problem and the machine. All numbers are integers, so that every
/// machine computes the same partition.
struct PartitionOptions {
  Division division = Division::balanced;
  bool aligned = false;     ///< true: cuts at tiles only; false: also at free cuts, which no column crosses
  std::int32_t tile = 128;  ///< take 384 where a kernel's tile does not divide 128
  std::int64_t query_heads = 32;
  std::int64_t kv_heads = 8;
  std::int64_t head_dim = 128;
  std::int64_t element_bytes = 2;       ///< bytes per element of k and v
  std::int64_t flops_per_ns = 600'000;  ///< speed of one rank: 600 TFLOP/s
  std::int64_t bytes_per_ns = 260;      ///< rate at which one rank sends, and receives: 260 GB/s
  std::int64_t exchange_ns = 80'000;    ///< cost of an exchange, however little it carries
  std::int64_t node_bytes_per_ns = 45;  ///< rate to and from other nodes, where there are two levels

  friend bool operator==(const PartitionOptions&, const PartitionOptions&) = default;
};

/// A mask of a model's layers, and how many layers use it.
struct WeightedMask {
  const Mask* mask = nullptr;
  std::int64_t weight = 1;
};

/// Shares the tokens of a sequence out over `sizes`: [ranks], or [nodes, ranks per node], where a rank's number is
/// node × ranks per node + its number in the node. Masks have as many rows as columns, the same number for all; batch
/// entries and heads of a mask share the partition. The tokens of two ranks differ by at most a tile; where cuts are
/// not at tiles, each rank is within 1 % or half a tile of an even share. A pure function of its arguments, in
/// integers: each rank can compute it alone.
///
/// Throws Status::invalid_argument.
FLASHMASK_API Partition partition(std::span<const WeightedMask> masks, std::span<const std::int32_t> sizes,
                                  const PartitionOptions& options = {}, Executor& executor = default_executor());
FLASHMASK_API Partition partition(const Mask& mask, std::int32_t ranks, const PartitionOptions& options = {},
                                  Executor& executor = default_executor());

/// Columns that a rank must fetch, since its rows see some of them and another rank holds them.
struct Need {
  std::int32_t rank = 0;
  std::int32_t owner = 0;
  Span columns;

  friend bool operator==(const Need&, const Need&) = default;
};

/// Returns what all ranks must fetch, sorted by rank and then by column. The sequence is cut at multiples of the tile
/// and at the ends of runs; a rank fetches a whole piece if any of its rows sees any column of it in any batch entry or
/// head; neighbouring pieces of one owner are one need.
FLASHMASK_API std::vector<Need> needs(const Partition& partition, const Mask& mask,
                                      Executor& executor = default_executor());

/// Returns the columns that a rank attends to, its own and those it fetches, in ascending order, as slice() takes them.
/// `needs` holds the needs of all ranks.
FLASHMASK_API std::vector<Span> local_columns(const Partition& partition, std::span<const Need> needs,
                                              std::int32_t rank);

/// What one rank has to do under one mask.
struct RankLoad {
  std::int64_t tokens = 0;
  std::int64_t tiles = 0;         ///< tiles that its rows visit, over all batch entries and heads of the mask
  std::int64_t row_tiles = 0;     ///< over all batch entries and heads; each costs as much as two more tiles
  std::int64_t column_tiles = 0;  ///< tiles in which any rank visits this rank's columns
  std::int64_t received = 0;      ///< columns that it fetches
  std::int64_t sent = 0;          ///< columns, each counted as often as it is sent

  /// The work to balance among ranks, in tiles.
  std::int64_t work() const { return tiles + 2 * row_tiles; }
  friend bool operator==(const RankLoad&, const RankLoad&) = default;
};

/// Returns the load of every rank.
FLASHMASK_API std::vector<RankLoad> loads(const Partition& partition, const Mask& mask,
                                          Executor& executor = default_executor());

/// How long an attention call takes, forward and backward, in nanoseconds: what partition() minimises.
struct PredictedTime {
  std::int64_t attention = 0;  ///< time of the busiest rank
  std::int64_t wire = 0;       ///< communication time of the rank that sends or receives most
  std::int64_t ideal = 0;      ///< attention if it were shared out evenly, without communication

  std::int64_t total() const { return attention + wire; }
};

FLASHMASK_API PredictedTime predict(std::span<const RankLoad> loads, const MaskShape& mask,
                                    const PartitionOptions& options);

}  // namespace flashmask
