#include "dispatch/device_plan.h"

#include <utility>

#include "dispatch/plan_choice.h"
#include "dispatch/registry.h"
#include "flashmask/error.h"
#include "mask/row_indices.h"

namespace flashmask {
namespace {

constexpr std::size_t kPlanAlignment = 256;

[[noreturn]] void refuse(Status status, const std::string& what) { throw Error(status, "plan: " + what); }

void check_place(const PlanPlace& place, std::size_t needed) {
  if (place.memory == nullptr || place.bytes < needed)
    refuse(Status::invalid_argument, "the memory on the device has " +
                                         std::to_string(place.memory == nullptr ? 0 : place.bytes) +
                                         " bytes; expected " + std::to_string(needed) + ", which plan_bytes() says");
  if (reinterpret_cast<std::uintptr_t>(place.memory) % kPlanAlignment != 0)
    refuse(Status::invalid_argument, "the memory on the device is not aligned to " + std::to_string(kPlanAlignment) +
                                         " bytes; expected what cudaMalloc gives");
}

void check_problem(const Problem& problem, const PlanOptions& options) {
  validate(problem);
  if (problem.device.type != DeviceType::cuda)
    refuse(Status::invalid_argument,
           "the problem is on " + to_string(problem.device) + "; expected a CUDA device, as a place on one was given");
  if (problem.dropout > 0) refuse(Status::unsupported, "dropout on a GPU is not in this build; take 0 there");
  if (options.reorder) refuse(Status::unsupported, "reordering on a GPU is not in this build; reorder the mask first");
  if (options.form == MaskForm::bits)
    refuse(Status::unsupported, "masks as bits on a GPU are not in this build; take a mask that fits intervals");
}

/// The kernels of both directions. Without a backward the forward still serves.
struct Selection {
  PlanAccess::Choice forward, backward;

  Selection(const MaskShape& mask, const Problem& problem, const PlanOptions& options) {
    check_problem(problem, options);
    check_mask(mask, problem);
    const auto request = [&](Direction direction) {
      return KernelRequest{direction, problem, MaskForm::intervals, options.kernel, options.deterministic};
    };
    forward.kernel = &select_kernel(request(Direction::forward));
    backward.kernel = find_kernel(request(Direction::backward));
    if (backward.kernel == nullptr) backward.refusal = no_kernel(request(Direction::backward));
  }

  DeviceTileShapes tiles() const {
    DeviceTileShapes tiles{forward.kernel->info().tile, forward.kernel->finer_tile(), std::nullopt};
    if (backward.kernel != nullptr) tiles.backward = backward.kernel->info().tile;
    return tiles;
  }
};

template <class Source>
Plan make_plan(const Source& mask, const MaskShape& shape, const Problem& problem, const PlanPlace& place,
               const PlanOptions& options) {
  const Selection kernels(shape, problem, options);
  check_place(place, device_plan_bytes(shape, kernels.tiles()));
  return PlanAccess::on_device(problem, options.visit, kernels.forward, kernels.backward,
                               make_device_plan(mask, kernels.tiles(), problem.device, place));
}

}  // namespace

std::size_t plan_bytes(const MaskShape& mask, const Problem& problem, const PlanOptions& options) {
  return device_plan_bytes(mask, Selection(mask, problem, options).tiles());
}

Plan plan(const Mask& mask, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  const LoweredMask& lowered = mask.lowered();
  if (lowered.form() != MaskForm::intervals || lowered.blocks() != nullptr)
    refuse(Status::unsupported,
           "the mask is not of intervals alone (" + lowered.why() + "); masks as bits on a GPU are not in this build");
  return make_plan(lowered.intervals(), mask.shape(), problem, place, options);
}

Plan plan(const DeviceRowIndices& rows, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  check_row_indices(rows.shape, rows.vectors, rows.causal);
  return make_plan(rows, rows.shape, problem, place, options);
}

}  // namespace flashmask
