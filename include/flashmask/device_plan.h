#pragma once

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

/// startend_row_indices in the memory of a GPU; see startend_row_indices.h. Read once, on the stream.
struct DeviceRowIndices {
  const std::int32_t* values = nullptr;  ///< [batch, heads, columns, vectors]
  MaskShape shape;
  int vectors = 1;
  bool causal = true;
};

/// Bytes on the device that a plan of such a mask needs. Throws where no kernel of the device serves the problem.
FLASHMASK_API std::size_t plan_bytes(const MaskShape& mask, const Problem& problem, const PlanOptions& options = {});

/// backward() throws where no backward kernel of the device serves the problem. Masks of the form bits, dropout and
/// reordering are refused with Status::unsupported.
FLASHMASK_API Plan plan(const Mask& mask, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});
FLASHMASK_API Plan plan(const DeviceRowIndices& rows, const Problem& problem, const PlanPlace& place,
                        const PlanOptions& options = {});

}  // namespace flashmask
