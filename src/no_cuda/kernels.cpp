#include "dispatch/device_plan.h"
#include "dispatch/kernel.h"
#include "flashmask/error.h"

// No kernel of this table serves a GPU, so that nothing below is reached: plan() has refused before.
namespace flashmask {
namespace {

[[noreturn]] void refuse() { throw Error(Status::unsupported, "this build has no CUDA"); }

}  // namespace

KernelRows cuda_kernels() { return {}; }

std::size_t device_plan_bytes(const MaskShape&, const DeviceTileShapes&) { refuse(); }

DevicePlan make_device_plan(const IntervalMask&, const DeviceTileShapes&, Device, const PlanPlace&) { refuse(); }

DevicePlan make_device_plan(const DeviceRowIndices&, const DeviceTileShapes&, Device, const PlanPlace&) { refuse(); }

}  // namespace flashmask
