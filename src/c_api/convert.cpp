// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.h"

#include <algorithm>
#include <limits>

#include "c_api/sized_struct.h"
#include "flashmask/features.h"

namespace flashmask::c_api {
namespace {

static_assert(FLASHMASK_OK == static_cast<int>(Status::ok));
static_assert(FLASHMASK_INVALID_ARGUMENT == static_cast<int>(Status::invalid_argument));
static_assert(FLASHMASK_UNSUPPORTED == static_cast<int>(Status::unsupported));
static_assert(FLASHMASK_OUT_OF_MEMORY == static_cast<int>(Status::out_of_memory));
static_assert(FLASHMASK_IO == static_cast<int>(Status::io));
static_assert(FLASHMASK_INTERNAL == static_cast<int>(Status::internal));
static_assert(FLASHMASK_F32 == static_cast<int>(DType::f32));
static_assert(FLASHMASK_BF16 == static_cast<int>(DType::bf16));
static_assert(FLASHMASK_F16 == static_cast<int>(DType::f16));
static_assert(FLASHMASK_CPU == static_cast<int>(DeviceType::cpu));
static_assert(FLASHMASK_CUDA == static_cast<int>(DeviceType::cuda));
static_assert(FLASHMASK_INTERVALS == static_cast<int>(MaskForm::intervals));
static_assert(FLASHMASK_BITS == static_cast<int>(MaskForm::bits));
static_assert(FLASHMASK_FORWARD == static_cast<int>(Direction::forward));
static_assert(FLASHMASK_BACKWARD == static_cast<int>(Direction::backward));
static_assert(FLASHMASK_VISIT_ACTIVE == static_cast<int>(Visit::active));
static_assert(FLASHMASK_VISIT_ALL == static_cast<int>(Visit::all));
static_assert(FLASHMASK_FEATURE_DROPOUT == static_cast<int>(Feature::dropout));
static_assert(FLASHMASK_FEATURE_DETERMINISTIC == static_cast<int>(Feature::deterministic));
static_assert(FLASHMASK_FEATURE_BLOCK_MAP == static_cast<int>(Feature::block_map));
static_assert(FLASHMASK_FEATURE_SINKS == static_cast<int>(Feature::sinks));
static_assert(FLASHMASK_FEATURE_FLOAT32_KEY_GRADIENTS == static_cast<int>(Feature::float32_key_gradients));
static_assert(FLASHMASK_FEATURE_SOFTCAP == static_cast<int>(Feature::softcap));
static_assert(FLASHMASK_FEATURE_ALIBI == static_cast<int>(Feature::alibi));
static_assert(FLASHMASK_FEATURE_INVARIANT == static_cast<int>(Feature::invariant));
static_assert(FLASHMASK_FEATURE_BIAS == static_cast<int>(Feature::bias));
static_assert(FLASHMASK_FEATURE_DISTANCE_BIAS == static_cast<int>(Feature::distance_bias));
static_assert(FLASHMASK_FEATURE_ANY_CHANGE == static_cast<int>(Feature::any_change));
static_assert(FLASHMASK_FEATURE_MAX_SCORES == static_cast<int>(Feature::max_scores));
static_assert(FLASHMASK_FEATURE_FUNCTIONS == static_cast<int>(Feature::functions));
static_assert(FLASHMASK_FEATURE_FUNCTIONS + 1 == kFeatureCount);
static_assert(FLASHMASK_BIAS_NONE == static_cast<int>(ScoreBias::none));
static_assert(FLASHMASK_BIAS_ALIBI == static_cast<int>(ScoreBias::alibi));
static_assert(FLASHMASK_BIAS_TENSOR == static_cast<int>(ScoreBias::tensor));
static_assert(FLASHMASK_BIAS_DISTANCES == static_cast<int>(ScoreBias::distances));

Device to_device(std::int32_t type, std::int32_t index, const std::string& name) {
  return {enumerator(type, DeviceType::cuda, name + ".device_type"), index};
}

}  // namespace

std::size_t element_count(std::span<const std::int64_t> sizes, const char* name) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0) {
      throw Error(Status::invalid_argument,
                  std::string(name) + " has the size " + std::to_string(size) + "; give sizes >= 0");
    }
    if (size > 0 && count > std::numeric_limits<std::int64_t>::max() / size) {
      throw Error(Status::invalid_argument, std::string(name) + " has more than 2^63 values; give smaller sizes");
    }
    count *= size;
  }
  return static_cast<std::size_t>(count);
}

MaskShape to_shape(const flashmask_mask_shape* shape) {
  const auto& [batch, heads, rows, columns] = require(shape, "shape");
  return {batch, heads, rows, columns};
}

Direction to_direction(std::int32_t direction) { return enumerator(direction, Direction::backward, "direction"); }

Visit to_visit(std::int32_t visit) { return enumerator(visit, Visit::all, "visit"); }

std::optional<MaskForm> to_form(std::int32_t choice) {
  switch (enumerator(choice, FLASHMASK_FORM_BITS, "form")) {
    case FLASHMASK_FORM_INTERVALS:
      return MaskForm::intervals;
    case FLASHMASK_FORM_BITS:
      return MaskForm::bits;
    default:
      return std::nullopt;
  }
}

namespace {

/// Returns the change of a problem's text, or that of the fields that say what was possible before it.
ScoreChange to_change(const flashmask_problem& problem) {
  const auto bias = enumerator(problem.bias, ScoreBias::distances, "problem.bias");
  const bool by_fields = problem.softcap != 0 || bias != ScoreBias::none;
  if (problem.change != nullptr && by_fields)
    throw Error(Status::invalid_argument,
                "problem.change is given, and softcap or bias too; write them into the change");
  if (problem.change != nullptr) return ScoreChange::parse(problem.change);
  const ScoreChange capped = problem.softcap != 0 ? scores::softcap(problem.softcap) : ScoreChange();
  return bias != ScoreBias::none ? capped | ScoreChange({.kind = ScoreStep::Kind::add, .bias = bias}) : capped;
}

}  // namespace

Problem to_problem(const flashmask_problem* given) {
  const flashmask_problem problem = read_struct(given, "problem");
  Problem result;
  result.batch = problem.batch;
  result.query_length = problem.query_length;
  result.key_length = problem.key_length;
  result.query_heads = problem.query_heads;
  result.kv_heads = problem.kv_heads;
  result.head_dim = problem.head_dim;
  result.value_dim = problem.value_dim;
  result.dtype = enumerator(problem.dtype, DType::f16, "problem.dtype");
  result.device = to_device(problem.device_type, problem.device_index, "problem");
  if (problem.scale != 0.0F) result.scale = problem.scale;
  if (problem.double_scale != 0.0) result.scale = problem.double_scale;
  result.dropout = problem.dropout;
  result.change = to_change(problem);
  return result;
}

std::span<const std::int32_t> to_place(const std::int32_t* place, std::int64_t size) {
  if (place != nullptr && size == 0)
    throw Error(Status::invalid_argument, "dropout_place is given and dropout_place_size is 0; give its size too");
  return array(place, size, "dropout_place");
}

flashmask_reordering_view to_view(const Reordering& reordering) {
  flashmask_reordering_view view{};
  view.gained = reordering.gained ? 1 : 0;
  view.tile_rows = reordering.tile.rows;
  view.tile_columns = reordering.tile.columns;
  view.tiles_before = reordering.tiles_before;
  view.tiles_after = reordering.tiles_after;
  view.rows = reordering.rows.data();
  view.columns = reordering.columns.data();
  view.why = reordering.why.c_str();
  return view;
}

TensorView to_tensor_view(const flashmask_tensor& tensor, const std::string& name) {
  if (tensor.rank < 0 || tensor.rank > 4) {
    throw Error(Status::invalid_argument,
                name + " has rank " + std::to_string(tensor.rank) + "; give 1 to 4, or 0 when it is absent");
  }
  TensorView view;
  view.data = tensor.data;
  view.dtype = enumerator(tensor.dtype, DType::f16, name + ".dtype");
  view.device = to_device(tensor.device_type, tensor.device_index, name);
  view.rank = tensor.rank;
  std::copy_n(tensor.shape, view.shape.size(), view.shape.begin());
  std::copy_n(tensor.strides, view.strides.size(), view.strides.begin());
  return view;
}

}  // namespace flashmask::c_api
