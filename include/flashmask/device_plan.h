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
/// Calls on other streams wait for that stream first.
namespace flashmask {

/// Where a plan is made.
struct PlanPlace {
  void* stream = nullptr;  ///< a cudaStream_t of the problem's device; nullptr: its default stream
  void* memory =
      nullptr;  ///< on that device, aligned to 256 bytes; the caller keeps it until the plan's last call is done
  std::size_t bytes = 0;  ///< of the memory; at least plan_bytes()
};

// Masks in the memory of a GPU. What they point to is read once, on the stream, and may go afterwards.

/// Blocks of 128 × 128 scores that are kept or left out as a whole; see block_map.h.
struct DeviceBlockMap {
  static constexpr int kBlock = 128;
  /// [batch, heads, ⌈rows / 128⌉, ⌈columns / 128⌉], nonzero = keep; nullptr: all are kept.
  const std::int32_t* keep = nullptr;
  std::int64_t batch = 1;  ///< 1 or that of the mask, as heads
  std::int64_t heads = 1;
};

/// startend_row_indices; see startend_row_indices.h.
struct DeviceRowIndices {
  const std::int32_t* values = nullptr;  ///< [batch, heads, columns, vectors]
  MaskShape shape;
  int vectors = 1;
  bool causal = true;
  DeviceBlockMap blocks = {};  ///< ANDed onto them
};

/// Dense booleans [batch, heads, rows, columns], a byte each, nonzero = visible.
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

/// Bytes on the device that a plan of such a mask needs: with intervals alone, of a mask, or of what lies there. Bits
/// that lie there take a quarter of a byte a score. Throws where no kernel of the device serves the problem.
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

/// backward() throws where no backward kernel of the device serves the problem. Dropout is refused with
/// Status::unsupported. With PlanOptions::reorder, plan_bytes() and plan() each look for the order on the host: give
/// them what reorder() found, to look once. Tensors are gathered and scattered on the device.
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

/// What the kernels of a plan take where PlanOptions leaves it to them.
struct TileSizes {
  TileSize forward = TileSize::automatic;
  TileSize backward = TileSize::automatic;

  friend bool operator==(const TileSizes&, const TileSizes&) = default;
};

/// The tiles that plan() would take under a mask, told on the host; automatic where the kernel has one size, as those
/// of a CPU have, or none serves. For PlanOptions of the plans of its slices.
FLASHMASK_API TileSizes tile_sizes(const Mask& mask, const Problem& problem, const PlanOptions& options = {},
                                   Executor& executor = default_executor());

/// Which capture of a CUDA graph a stream is in: a number that the process uses once; 0 for none. What a plan made in
/// one reads and writes belongs to that graph.
FLASHMASK_API std::uint64_t stream_capture(Device device, void* stream);

}  // namespace flashmask
