// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "flashmask/attention.h"
#include "flashmask/export.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"

/// Plans for a GPU: made there, on the caller's stream and in the caller's memory, without waiting for the device.
/// A caller that uses such a plan on another stream lets that stream wait for the one that it was made on.
namespace flashmask {

/// Where a plan is made.
struct PlanPlace {
  void* stream = nullptr;  ///< a cudaStream_t of the problem's device; nullptr: its default stream
  void* memory =
      nullptr;  ///< on that device, aligned to 256 bytes; the caller keeps it until the plan's last call is done
  std::size_t bytes = 0;  ///< size of the memory; at least plan_bytes()
  /// The memory holds the plan of a mask with the same contents, problem and options already, perhaps copied from where
  /// it was made: nothing is launched.
  bool made = false;
};

// Masks in the memory of a GPU. What they point to is read once, on the stream, and may be freed afterwards.

/// Blocks of 128 × 128 scores that are kept or left out as a whole; see block_map.h.
struct DeviceBlockMap {
  static constexpr int kBlock = 128;
  /// [batch, heads, ⌈rows / 128⌉, ⌈columns / 128⌉], nonzero = keep; nullptr: all blocks are kept.
  const std::int32_t* keep = nullptr;
  std::int64_t batch = 1;  ///< 1 or the mask's batch; `heads` likewise
  std::int64_t heads = 1;
};

/// startend_row_indices; see startend_row_indices.h.
struct DeviceRowIndices {
  const std::int32_t* values = nullptr;  ///< [batch, heads, columns, vectors]
  MaskShape shape;
  int vectors = 1;
  bool causal = true;
  DeviceBlockMap blocks = {};  ///< ANDed onto the row indices
  /// For invariant plans: the most documents of a batch entry, each stretch of padding between them counted as one.
  /// Memory and tiles are set aside for so many; under a mask with more the device prints a line that says so, and
  /// traps.
  std::int64_t most_documents = 0;
};

/// Dense booleans [batch, heads, rows, columns], one byte each, nonzero = visible.
struct DeviceDenseMask {
  const std::uint8_t* data = nullptr;
  MaskShape shape;
  std::array<std::int64_t, 4> strides{};  ///< in bytes
};

/// Bits [batch, heads, rows, ⌈columns / 8⌉] as from_packed() takes them: bit c % 8 of byte c / 8 for column c.
struct DevicePackedMask {
  const std::uint8_t* bits = nullptr;
  MaskShape shape;
};

/// Returns the bytes that a plan needs on the device: for any mask of this shape that is lowered to intervals alone,
/// for a mask on the host, or for one in the device's memory. A dense or packed mask there takes a quarter of a byte
/// per score. Throws where no kernel of the device serves the problem.
FLASHMASK_API std::size_t plan_bytes(const MaskShape& intervals, const Problem& problem,
                                     const PlanOptions& options = {});
FLASHMASK_API std::size_t plan_bytes(const Mask& mask, const Problem& problem, const PlanOptions& options = {});
FLASHMASK_API std::size_t plan_bytes(const Reordering& reordering, const Problem& problem,
                                     const PlanOptions& options = {});
FLASHMASK_API std::size_t plan_bytes(const DeviceRowIndices& rows, const Problem& problem,
                                     const PlanOptions& options = {});
FLASHMASK_API std::size_t plan_bytes(const DeviceDenseMask& mask, const Problem& problem,
                                     const PlanOptions& options = {});
FLASHMASK_API std::size_t plan_bytes(const DevicePackedMask& mask, const Problem& problem,
                                     const PlanOptions& options = {});

/// Makes a plan on the device. backward() throws where no backward kernel of the device serves the problem. With
/// PlanOptions::reorder, plan_bytes() and plan() each search for the order on the host; pass them the result of
/// reorder() to search once. Tensors are then gathered and scattered on the device.
FLASHMASK_API Plan plan(const Mask& mask, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});
FLASHMASK_API Plan plan(const Reordering& reordering, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});
FLASHMASK_API Plan plan(const DeviceRowIndices& rows, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});
FLASHMASK_API Plan plan(const DeviceDenseMask& mask, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});
FLASHMASK_API Plan plan(const DevicePackedMask& mask, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});

/// The tile sizes that a plan's kernels use where PlanOptions leaves the choice to them.
struct TileSizes {
  TileSize forward = TileSize::automatic;
  TileSize backward = TileSize::automatic;

  friend bool operator==(const TileSizes&, const TileSizes&) = default;
};

/// Finds on the host which tiles plan() would use under a mask; automatic where the kernel has one size, as CPU kernels
/// have, or no kernel serves. For the PlanOptions of plans of the mask's slices.
FLASHMASK_API TileSizes tile_sizes(const Mask& mask, const Problem& problem, const PlanOptions& options = {},
                                   Executor& executor = default_executor());

/// Returns which CUDA graph capture a stream is in: a number that the process uses only once; 0 for none. The memory
/// that a plan made during a capture reads and writes belongs to that graph.
FLASHMASK_API std::uint64_t stream_capture(Device device, void* stream);

}  // namespace flashmask
