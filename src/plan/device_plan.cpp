// SPDX-License-Identifier: Apache-2.0
#include "plan/device_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/checks.h"
#include "flashmask/block_map.h"
#include "flashmask/error.h"
#include "flashmask/reorder.h"
#include "mask/row_indices.h"
#include "plan/plan_choice.h"
#include "plan/registry.h"
#include "plan/tile_size.h"
#include "schedule/places.h"

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

void check_problem(const Problem& problem) {
  validate(problem);
  if (problem.device.type != DeviceType::cuda)
    refuse(Status::invalid_argument,
           "the problem is on " + to_string(problem.device) + "; expected a CUDA device, as a place on one was given");
}

/// The properties of a mask that decide which kernels serve it.
struct Facts {
  MaskShape shape;
  MaskForm form;
  std::int64_t block = 0;  // block size of a block map beside intervals; 0: none
};

Facts facts_of(const HostMask& host) {
  const LoweredMask& mask = host.lowered;
  return {mask.shape(), mask.form(), mask.blocks() == nullptr ? 0 : mask.blocks()->block()};
}
Facts facts_of(const DeviceRowIndices& rows) {
  return {rows.shape, MaskForm::intervals, rows.blocks.keep == nullptr ? 0 : DeviceBlockMap::kBlock};
}
template <class AllCells>
Facts facts_of(const AllCells& mask) {
  return {mask.shape, MaskForm::bits};
}

/// The kernels of both directions. Without a backward kernel the plan still serves the forward.
struct Selection {
  PlanAccess::Choice forward, backward;
  bool compiles_when_called;

  Selection(const Facts& mask, const Problem& problem, const PlanOptions& options)
      : compiles_when_called(options.compile_when_called) {
    check_problem(problem);
    check_mask(mask.shape, problem);
    Features needed = needed_by(options);
    if (mask.block != 0) needed.add(Feature::block_map);
    const auto request = [&](Direction direction) {
      return KernelRequest{direction, problem, mask.form, options.kernel, needed, mask.block};
    };
    forward.kernel = &select_kernel(request(Direction::forward));
    forward.tiles = options.forward_tiles;
    check_tiles(*forward.kernel, forward.tiles);
    backward.kernel = find_kernel(request(Direction::backward));
    backward.tiles = options.backward_tiles;
    backward.query_gradient = !options.skip_query_gradient;
    backward.key_gradients = !options.skip_key_gradients;
    backward.compiles_later = options.compile_backward_later;
    if (backward.kernel != nullptr) check_tiles(*backward.kernel, backward.tiles);
    if (backward.kernel == nullptr) backward.refusal = no_kernel(request(Direction::backward));
  }

  /// Has the kernels compiled that the problem's change of scores needs.
  void compile(const Problem& problem, void* stream) {
    if (compiles_when_called || problem.change.is_cap_and_bias()) return;
    std::vector<const Kernel*> kernels{forward.kernel};
    if (backward.kernel != nullptr && !backward.compiles_later) kernels.push_back(backward.kernel);
    for (CompiledKernel& made : compile_kernels(kernels, problem, stream))
      (made.direction == Direction::forward ? forward : backward).compiled.push_back(std::move(made));
  }

  /// Returns the maps that both kernels ask for.
  std::vector<MapRequest> maps() const {
    std::vector<MapRequest> all = forward.kernel->maps();
    if (backward.kernel != nullptr) std::ranges::copy(backward.kernel->maps(), std::back_inserter(all));
    return merged(all);
  }
};

template <class Source>
std::size_t bytes_of(const Source& mask, const Problem& problem, const PlanOptions& options) {
  return device_plan_bytes(&mask, Selection(facts_of(mask), problem, options).maps());
}

template <class Source>
Plan make_plan(const Source& mask, const Problem& problem, const PlanPlace& place, const PlanOptions& options,
               const std::shared_ptr<const Reordering>& reordering = nullptr) {
  Selection kernels(facts_of(mask), problem, options);
  const std::vector<MapRequest> maps = kernels.maps();
  check_place(place, device_plan_bytes(&mask, maps));
  kernels.compile(problem, place.stream);
  return PlanAccess::on_device(problem, options.visit, kernels.forward, kernels.backward,
                               make_device_plan(&mask, maps, problem.device, place), reordering);
}

/// Lowers a mask; one with a block map becomes bits if every tile is visited, as such kernels read no block map.
LoweredMask lowered(const Mask& mask, const PlanOptions& options) {
  const bool blocks = mask.lowered().blocks() != nullptr && options.visit == Visit::all;
  if (!options.form.has_value() && !blocks) return lower(mask);
  return lower(mask, blocks ? MaskForm::bits : *options.form);
}

/// Reorders tokens so that the forward kernel has the least work.
Reordering reordered(const Mask& mask, const Problem& problem, const PlanOptions& options) {
  check_moved("reorder", problem);
  const Selection kernels(facts_of(HostMask{lowered(mask, options)}), problem, options);
  return reorder(mask, kernels.forward.kernel->info().tile);
}

HostMask host_mask(const Reordering& reordering, const Problem& problem, const PlanOptions& options) {
  HostMask host{lowered(reordering.mask, options)};
  if (!reordering.gained) return host;
  check_moved("reorder", problem);
  host.row_order = reordering.rows;
  host.column_order = reordering.columns;
  return host;
}

/// Returns the sides of units that whole tiles of all maps make up.
TileShape unit_of(const std::vector<MapRequest>& maps) {
  TileShape unit{1, 1};
  for (const MapRequest& map : maps)
    unit = {std::lcm(unit.rows, map.tile.rows), std::lcm(unit.columns, map.tile.columns)};
  return unit;
}

/// A mask on the host in places, and what it is made of.
class HostPlaces {
 public:
  HostPlaces(const LoweredMask& mask, TileShape unit, bool orders)
      : places_(places(mask, unit, 1, default_executor())), mask_{places_.mask} {
    if (orders) {
      row_order_ = places_.rows.order();
      column_order_ = places_.columns.order();
      mask_.row_order = row_order_;
      mask_.column_order = column_order_;
    } else {
      row_units_ = places_.rows.padded();
      column_units_ = places_.columns.padded();
      mask_.row_units = {row_units_, places_.rows.size, places_.rows.tokens};
      mask_.column_units = {column_units_, places_.columns.size, places_.columns.tokens};
    }
  }
  HostPlaces(const HostPlaces&) = delete;
  HostPlaces& operator=(const HostPlaces&) = delete;

  DeviceSource source() const { return &mask_; }
  const MaskShape& shape() const { return places_.mask.shape(); }

 private:
  Places places_;
  HostMask mask_;
  std::vector<std::int64_t> row_order_, column_order_;
  std::vector<Unit> row_units_, column_units_;
};

/// Row indices on the device, which are moved to places there.
class DevicePlaces {
 public:
  DevicePlaces(const DeviceRowIndices& rows, TileShape unit, bool orders) : placed_(rows, unit, orders) {}

  DeviceSource source() const { return &placed_; }
  const MaskShape& shape() const { return placed_.shape; }

 private:
  PlacedRowIndices placed_;
};

/// The part of an invariant plan for kernels whose tiles make up the same units: a plan of tokens in places, where the
/// kernels find them by units, or where they are gathered for them.
template <class PlacesOf>
class PlacedPlan {
 public:
  template <class Source>
  PlacedPlan(const Source& mask, const Problem& problem, const PlanAccess::Choice& choice)
      : maps_(merged(choice.kernel->maps())),
        unit_(unit_of(maps_)),
        orders_(!choice.kernel->reads_units()),
        places_(mask, unit_, orders_),
        problem_(problem) {
    problem_.query_length = places_.shape().rows;
    problem_.key_length = places_.shape().columns;
    add(choice, problem.query_length);
  }

  bool serves(const Kernel& kernel) const {
    return unit_ == unit_of(merged(kernel.maps())) && orders_ == !kernel.reads_units();
  }

  /// Adds a direction. `rows`: of the caller.
  void add(const PlanAccess::Choice& choice, std::int64_t rows) {
    if (const std::string reason = choice.kernel->refusal(problem_); !reason.empty())
      refuse(Status::unsupported, "tiles that begin where documents begin take " + grouped(problem_.query_length) +
                                      " places for " + grouped(rows) + " rows, and then " + reason);
    std::ranges::copy(choice.kernel->maps(), std::back_inserter(maps_));
    maps_ = merged(maps_);
    (choice.kernel->info().direction == Direction::forward ? forward_ : backward_) = choice;
  }

  std::size_t bytes() const { return device_plan_bytes(places_.source(), maps_, kRoomForAll); }

  /// Returns the plan, made at the start of `place`, which then begins behind it.
  std::shared_ptr<const Plan> make(PlanPlace& place, Visit visit) const {
    const DevicePlan made = make_device_plan(places_.source(), maps_, problem_.device, place, kRoomForAll);
    place.memory = static_cast<std::byte*>(place.memory) + bytes();
    place.bytes -= bytes();
    return std::make_shared<const Plan>(PlanAccess::on_device(problem_, visit, forward_, backward_, made, nullptr));
  }

 private:
  /// Whether a square has room must not depend on the rest of the mask, as it decides the order of its tiles.
  static constexpr MapLimits kRoomForAll{.squares_of_strip = std::numeric_limits<int>::max()};

  static PlanAccess::Choice of_the_other() {
    return {.kernel = nullptr, .schedule = nullptr, .refusal = "the plan is of the other direction"};
  }

  std::vector<MapRequest> maps_;
  TileShape unit_;
  bool orders_;
  PlacesOf places_;
  Problem problem_;
  PlanAccess::Choice forward_ = of_the_other(), backward_ = of_the_other();
};

/// A plan whose tiles begin where documents begin.
template <class PlacesOf>
class InvariantPlan {
 public:
  template <class Source>
  InvariantPlan(const Source& mask, const Facts& facts, const Problem& problem, const PlanOptions& options)
      : problem_(problem), visit_(options.visit), kernels_(selected(facts, problem, options)) {
    for (const PlanAccess::Choice* choice : {&kernels_.forward, &kernels_.backward}) {
      if (choice->kernel == nullptr) continue;
      if (!parts_.empty() && parts_[0]->serves(*choice->kernel)) {
        parts_[0]->add(*choice, problem.query_length);
      } else {
        parts_.push_back(std::make_unique<PlacedPlan<PlacesOf>>(mask, problem, *choice));
      }
    }
  }

  std::size_t bytes() const {
    std::size_t all = 0;
    for (const auto& part : parts_) all += part->bytes();
    return all;
  }

  Plan make(PlanPlace place) {
    check_place(place, bytes());
    kernels_.compile(problem_, place.stream);
    PlanAccess::Choice* const choices[] = {&kernels_.forward, &kernels_.backward};
    std::shared_ptr<const Plan> in_places;
    for (std::size_t i = 0; i < std::size(choices); ++i) {
      if (i < parts_.size()) in_places = parts_[i]->make(place, visit_);
      if (choices[i]->kernel != nullptr) choices[i]->in_places = in_places;
    }
    return PlanAccess::on_device(problem_, visit_, kernels_.forward, kernels_.backward, {}, nullptr);
  }

 private:
  static Selection selected(const Facts& facts, const Problem& problem, const PlanOptions& options) {
    check_moved("invariant", problem);
    return {facts, problem, options};
  }

  Problem problem_;
  Visit visit_;
  Selection kernels_;
  std::vector<std::unique_ptr<PlacedPlan<PlacesOf>>> parts_;  // of the forward, and of the backward if it is another
};

InvariantPlan<HostPlaces> invariant(const Mask& mask, const Problem& problem, const PlanOptions& options) {
  check_invariant(mask.lowered(), problem, options);
  const LoweredMask form = lowered(mask, options);
  return {form, facts_of(HostMask{form}), problem, options};
}

InvariantPlan<DevicePlaces> invariant(const DeviceRowIndices& rows, const Problem& problem,
                                      const PlanOptions& options) {
  return {rows, facts_of(rows), problem, options};
}

void check_order(const PlanOptions& options) {
  if (options.reorder)
    refuse(Status::unsupported, "a mask that lies on the device is not reordered; give the mask from the host");
}

/// Refuses what a mask of bits on the device, or one of which only the shape is known, cannot have.
void check_unseen(const PlanOptions& options) {
  check_order(options);
  if (options.invariant)
    refuse(Status::unsupported,
           "invariant was asked for, and of masks on the device, documents are found in row indices alone; give those, "
           "or the mask from the host");
}

void check_blocks(const DeviceRowIndices& rows, const PlanOptions& options) {
  if (rows.blocks.keep == nullptr) return;
  const auto fits = [](std::int64_t given, std::int64_t own) { return given == 1 || given == own; };
  if (!fits(rows.blocks.batch, rows.shape.batch) || !fits(rows.blocks.heads, rows.shape.heads))
    refuse(Status::invalid_argument, "the block map has a batch of " + std::to_string(rows.blocks.batch) + " and " +
                                         std::to_string(rows.blocks.heads) + " heads; expected those of the indices, " +
                                         std::to_string(rows.shape.batch) + " and " + std::to_string(rows.shape.heads) +
                                         ", or 1");
  if (options.visit == Visit::all)
    refuse(Status::unsupported,
           "every tile is to be visited under a block map that lies on the device; give the mask from the host");
}

void check_row_indices(const DeviceRowIndices& rows, const PlanOptions& options) {
  flashmask::check_row_indices(rows.shape, rows.vectors, rows.causal);
  check_order(options);
  if (options.invariant && rows.blocks.keep != nullptr)
    refuse(Status::unsupported,
           "invariant and a block map on the device were both asked for; give the mask from the "
           "host, as bits");
  if (options.invariant && rows.most_documents < 1)
    refuse(Status::invalid_argument, "invariant was asked for, and most_documents is " +
                                         std::to_string(rows.most_documents) +
                                         "; expected how many documents the row indices on the device have at most, "
                                         "stretches of padding between them counted, as the host does not see them");
  if (options.form == MaskForm::bits)
    refuse(Status::unsupported, "row indices on the device are not turned into bits; give the mask from the host");
  check_blocks(rows, options);
}

/// Checks a mask on the device that kernels read as bits.
void check_bits(const char* name, const void* data, const MaskShape& shape, const PlanOptions& options) {
  check_unseen(options);
  for (const std::int64_t size : {shape.batch, shape.heads, shape.rows, shape.columns})
    if (!is_size(size))
      refuse(Status::invalid_argument,
             std::string(name) + " has a size of " + std::to_string(size) + "; expected one from 0 to 2^31 - 1");
  if (data == nullptr && shape.batch * shape.heads * shape.rows * shape.columns != 0)
    refuse(Status::invalid_argument, std::string(name) + " is null; give scores in the memory of the device");
  if (options.form == MaskForm::intervals)
    refuse(Status::unsupported,
           std::string(name) + " lies on the device, where bits do not become intervals; give the mask from the host");
}

void check_bits(const DeviceDenseMask& mask, const PlanOptions& options) {
  check_bits("the dense mask", mask.data, mask.shape, options);
}
void check_bits(const DevicePackedMask& mask, const PlanOptions& options) {
  check_bits("the packed mask", mask.bits, mask.shape, options);
}

}  // namespace

TileSizes tile_sizes(const Mask& mask, const Problem& problem, const PlanOptions& options, Executor& executor) {
  if (problem.device.type == DeviceType::cpu) return {};
  check_order(options);
  const LoweredMask form = lowered(mask, options);
  const Selection kernels(facts_of(HostMask{form}), problem, options);
  const auto of = [&](const PlanAccess::Choice& choice) {
    const auto when = choice.kernel == nullptr ? std::nullopt : choice.kernel->small_tiles();
    return when ? size_for(form, *when, executor) : TileSize::automatic;
  };
  return {of(kernels.forward), of(kernels.backward)};
}

PlacedRowIndices::PlacedRowIndices(const DeviceRowIndices& given, TileShape unit_of_places, bool orders_tokens)
    : rows(given), unit(unit_of_places), orders(orders_tokens), shape(given.shape) {
  most_islands = std::min(rows.most_documents, std::max<std::int64_t>(shape.rows + shape.columns, 1));
  // An island's last unit need not be full: so many fit whatever their lengths are.
  const auto places = [&](std::int64_t count, std::int64_t size) {
    return std::min(count / size + most_islands, count) * size;
  };
  shape.rows = places(rows.shape.rows, unit.rows);
  shape.columns = places(rows.shape.columns, unit.columns);
  if (!is_size(shape.rows) || !is_size(shape.columns))
    refuse(Status::unsupported, "tiles that begin where documents begin take " +
                                    grouped(std::max(shape.rows, shape.columns)) + " places for up to " +
                                    grouped(most_islands) +
                                    " documents; at most 2,147,483,647 fit: lower most_documents");
}

const DeviceMap* DevicePlan::find(TileShape tile, MapSide side) const {
  const auto found =
      std::ranges::find_if(maps, [&](const DeviceMap& each) { return each.tile == tile && each.side == side; });
  return found == maps.end() ? nullptr : &*found;
}

const DeviceMap& DevicePlan::map(TileShape tile, MapSide side) const {
  const DeviceMap* const found = find(tile, side);
  if (found == nullptr) throw std::logic_error("a kernel reads a map of tiles that it has not asked for");
  return *found;
}

std::vector<MapRequest> merged(const std::vector<MapRequest>& requests) {
  std::vector<MapRequest> all;
  for (const MapRequest& request : requests) {
    const auto same = std::ranges::find_if(all, [&](const MapRequest& other) { return other.is_same_map(request); });
    if (same == all.end()) {
      all.push_back(request);
      continue;
    }
    same->counted |= request.counted;
    same->spans |= request.spans;
    const bool needed = same->most_bytes == 0 || request.most_bytes == 0;
    same->most_bytes = needed ? 0 : std::max(same->most_bytes, request.most_bytes);
  }
  return all;
}

std::size_t plan_bytes(const MaskShape& intervals, const Problem& problem, const PlanOptions& options) {
  check_unseen(options);
  return bytes_of(DeviceRowIndices{nullptr, intervals}, problem, options);
}

std::size_t plan_bytes(const Mask& mask, const Problem& problem, const PlanOptions& options) {
  if (options.invariant) return invariant(mask, problem, options).bytes();
  if (options.reorder) return plan_bytes(reordered(mask, problem, options), problem, options);
  return bytes_of(HostMask{lowered(mask, options)}, problem, options);
}

std::size_t plan_bytes(const Reordering& reordering, const Problem& problem, const PlanOptions& options) {
  return bytes_of(host_mask(reordering, problem, options), problem, options);
}

std::size_t plan_bytes(const DeviceRowIndices& rows, const Problem& problem, const PlanOptions& options) {
  check_row_indices(rows, options);
  if (options.invariant) return invariant(rows, problem, options).bytes();
  return bytes_of(rows, problem, options);
}

std::size_t plan_bytes(const DeviceDenseMask& mask, const Problem& problem, const PlanOptions& options) {
  check_bits(mask, options);
  return bytes_of(mask, problem, options);
}

std::size_t plan_bytes(const DevicePackedMask& mask, const Problem& problem, const PlanOptions& options) {
  check_bits(mask, options);
  return bytes_of(mask, problem, options);
}

Plan plan(const Mask& mask, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  if (options.invariant) return invariant(mask, problem, options).make(place);
  if (options.reorder) return plan(reordered(mask, problem, options), problem, place, options);
  return make_plan(HostMask{lowered(mask, options)}, problem, place, options);
}

Plan plan(const Reordering& reordering, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  return make_plan(host_mask(reordering, problem, options), problem, place, options,
                   std::make_shared<const Reordering>(reordering));
}

Plan plan(const DeviceRowIndices& rows, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  check_row_indices(rows, options);
  if (options.invariant) return invariant(rows, problem, options).make(place);
  return make_plan(rows, problem, place, options);
}

Plan plan(const DeviceDenseMask& mask, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  check_bits(mask, options);
  return make_plan(mask, problem, place, options);
}

Plan plan(const DevicePackedMask& mask, const Problem& problem, const PlanPlace& place, const PlanOptions& options) {
  check_bits(mask, options);
  return make_plan(mask, problem, place, options);
}

}  // namespace flashmask
