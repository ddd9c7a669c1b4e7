// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "cuda/common/tensor_views.h"
#include "cuda/views/rows.h"
#include "flashmask/attention.h"
#include "mask/cell_words.h"
#include "plan/bias_units.h"
#include "plan/dropout.h"
#include "plan/kernel.h"

/// Fills what kernels are given (cuda/views) from a plan, a problem and a call's tensors.
namespace flashmask::cuda {

/// `scale`: what turns numbers into scores where ALiBi is added to them.
inline AlibiArguments alibi_arguments(const Problem& problem, const AlibiTensors& alibi, float scale) {
  if (problem.change.bias() != ScoreBias::alibi) return {};
  const auto numbers = [](const TensorView& tensor) { return static_cast<const float*>(tensor.data); };
  const auto between = [](const TensorView& tensor) { return tensor.shape[0] == 1 ? 0 : tensor.strides[0]; };
  return {.slopes = numbers(alibi.slopes),
          .query_positions = numbers(alibi.query_positions),
          .key_positions = numbers(alibi.key_positions),
          .slopes_batch = alibi.slopes.rank == 1 ? 0 : between(alibi.slopes),
          .query_positions_batch = between(alibi.query_positions),
          .key_positions_batch = between(alibi.key_positions),
          .query_length = static_cast<int>(problem.query_length),
          .key_length = static_cast<int>(problem.key_length),
          .row_shift = static_cast<int>(problem.key_length - problem.query_length),
          .to_products = 1 / scale};
}

/// `scale`: what turns products, bounded ones where scores are capped, into scores.
inline BiasArguments bias_arguments(const Problem& problem, const BiasTensor& bias, float scale) {
  if (!has_bias_tensor(problem)) return {};
  const TensorView& values = bias.values;
  const auto between = [&](int axis) { return values.shape[axis] == 1 ? 0 : values.strides[axis]; };
  const bool distances = problem.change.bias() == ScoreBias::distances;
  BiasArguments made{.values = values.data,
                     .batch = between(0),
                     .head = between(1),
                     .row = between(2),
                     .dtype = values.dtype,
                     .in_pairs = false,
                     .distances = distances,
                     .in_eights = false,
                     .entries = static_cast<int>(values.shape[3]),
                     .shift = 0,
                     .query_length = static_cast<int>(problem.query_length),
                     .key_length = static_cast<int>(problem.key_length),
                     .to_products = 1 / scale,
                     .product_log2 = scale * kLog2E};
  if (distances) {
    constexpr std::int64_t kFar = std::int64_t{1} << 30;  // further from all entries than there are tokens
    made.shift = static_cast<int>(std::clamp(problem.key_length - problem.query_length + bias.origin, -kFar, kFar));
  } else {
    made.in_pairs = comes_in(values, 2);
    made.in_eights = comes_in_eights(values);
  }
  return made;
}

/// Collects the dropout arguments of a call. Where it drops nothing, what it would draw from is meaningless.
inline DropoutArguments dropout_arguments(const Problem& problem, const KernelExecution& execution) {
  return {.seed = execution.dropout.seed,
          .offset = execution.dropout.offset,
          .on_device = execution.dropout_on_device,
          .addend = (65536 - dropout_threshold(problem.dropout)) * 0x10001U,
          .heads = static_cast<std::uint32_t>(problem.query_heads),
          .scale = static_cast<float>(dropout_scale(problem.dropout)),
          .drawn_heads = execution.dropout_place.heads,
          .row_eights = execution.dropout_place.row_eights,
          .column_eights = execution.dropout_place.column_eights};
}

inline SinkView sink_view(const TensorView& sinks) {
  const bool of_rows = sinks.rank == 3;
  return {.data = sinks.present() ? sinks.data : nullptr,
          .batch = of_rows ? sinks.strides[0] : 0,
          .head = sinks.strides[of_rows ? 1 : 0],
          .row = of_rows ? 1 : 0,
          .wide = sinks.dtype == DType::f32};
}

inline constexpr float kNearCap = 0.75F;

inline SoftcapArguments softcap_arguments(const Problem& problem) {
  if (!(problem.change.cap() > 0)) return {};
  // The smallest largest relative error of such a polynomial for tanh up to kNearCap.
  constexpr double kOdd[4] = {0.999988983, -0.332696703, 0.127426944, -0.0354527558};
  const double per_cap = problem.softmax_scale() / problem.change.cap();
  SoftcapArguments arguments{.to_exponent = static_cast<float>(2 * kLog2E * per_cap),
                             .near = static_cast<float>(kNearCap / per_cap),
                             .odd = {}};
  for (int i = 0; i < 4; ++i) arguments.odd[i] = static_cast<float>(kOdd[i] * std::pow(per_cap, 2 * i + 1));
  // Small caps have coefficients that float32 cannot hold.
  if (!std::isfinite(arguments.odd[3]) || !std::isfinite(arguments.near)) arguments.near = -1;
  return arguments;
}

inline ScoreArguments score_arguments(const Problem& problem, const KernelExecution& execution,
                                      const TensorView& sinks = {}, const AlibiTensors& alibi = {},
                                      const BiasTensor& bias = {}) {
  const auto scale = static_cast<float>(problem.softmax_scale()), cap = static_cast<float>(problem.change.cap());
  const float of_bounded = cap > 0 ? cap : scale;
  return {.scale = scale,
          .scale_log2 = has_bias_tensor(problem) || !problem.change.is_cap_and_bias() ? 1 : of_bounded * kLog2E,
          .to_exponent = cap > 0 ? 2 * kLog2E * (scale / cap) : 0,
          .alibi = alibi_arguments(problem, alibi, of_bounded),
          .bias = bias_arguments(problem, bias, of_bounded),
          .dropout = dropout_arguments(problem, execution),
          .sinks = sink_view(sinks)};
}

inline MaskView mask_view(const DeviceMask& mask) {
  const auto cells = [](std::int64_t scores) { return static_cast<int>((scores + kCellSize - 1) / kCellSize); };
  return {static_cast<int>(mask.shape.rows),
          static_cast<int>(mask.shape.columns),
          {mask.intervals[0], mask.intervals[1], mask.intervals[2], mask.intervals[3]},
          {mask.bits, cells(mask.shape.rows), cells(mask.shape.columns)}};
}

/// Returns how many query heads' keys and values fit in `section_bytes`, at least those of one key head: whole groups,
/// so that heads share what they load.
int heads_in_section(const Problem& problem, std::int64_t section_bytes);

/// Returns how many key heads' queries, sums for the gradients of queries and gradients of the output fit in
/// `section_bytes`, at least one.
int key_heads_in_section(const Problem& problem, std::int64_t section_bytes);

/// Return where the tokens of queries, and of keys, lie.
DeviceUnits query_units(const Plan& plan);
DeviceUnits key_units(const Plan& plan);

/// Returns the view of one of the plan's maps.
TileMapView map_view(const DeviceMap& map, const Plan& plan);

/// `map`: the kernel's map by rows, in the plan.
RowArguments row_arguments(const Plan& plan, const DeviceMap& map, const ScoreArguments& score, int* next_item);

}  // namespace flashmask::cuda
