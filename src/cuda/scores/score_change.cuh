// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/instructions/arithmetic.cuh"
#include "cuda/scores/bias_values.cuh"
#include "cuda/scores/changed_weights.cuh"
#include "cuda/scores/softcap.cuh"
#include "cuda/scores/tile_scores.cuh"
#include "cuda/views/change.h"
#include "cuda/views/scores.h"

/// A change of scores that a kernel is compiled with when a plan is made (cuda/compile). It is the text of
///
///     struct Change {
///       static constexpr bool kLocates;  // whether it reads where a score lies; if not, the constructor gets zeros
///       static constexpr bool kSlope;    // whether its derivative is not 1 everywhere
///       static constexpr bool kGuards;   // whether its derivative may be infinite or NaN
///       // Whether it may be NaN where a score is hidden, or in padding, whose products are 0.
///       static constexpr bool kMakesNan;
///       // The place is that of the lane's first score.
///       __device__ Change(const ChangeOperands&, int batch, int head, int row, int column);
///       // A changed score as a power of two, log₂ e times the score, and its derivatives by the score and by the
///       // bias; the last one exists where a tensor's bias is read.
///       __device__ float value(float product, int down, int right) const;
///       __device__ float value(float product, int down, int right, float& slope) const;
///       __device__ float value(float product, int down, int right, float& slope, float& bias_slope) const;
///       // Where the bias comes in eights (BiasArguments::in_eights): the type of its elements, and the same of a
///       // value at hand.
///       using Bias = …;
///       __device__ float biased(float product, float bias, int down, int right) const;
///       …
///     };
///
/// `product`: of query and key, without scale; `down`, `right`: how many rows and columns further on it lies than the
/// lane's first. They are known when a kernel is compiled: what is the same for some scores, such as what is read for a
/// row, is computed once, since there are no branches. The text may use the functions here.
namespace flashmask::cuda {

/// A place in a tensor with elements of type T, reached axis by axis. An index past the end, of scores that are hidden,
/// takes the last entry; none is below 0.
template <class T>
struct Entry {
  const ChangeTensor& tensor;
  const std::uint8_t* place;

  __device__ __forceinline__ explicit Entry(const ChangeTensor& of)
      : Entry(of, static_cast<const std::uint8_t*>(of.data)) {}
  __device__ __forceinline__ Entry(const ChangeTensor& of, const std::uint8_t* at) : tensor(of), place(at) {}

  /// Goes along an axis: by any stride, by one that fits 32 bits, which takes one instruction, and among neighbours.
  template <int kAxis>
  __device__ __forceinline__ Entry far(int index) const {
    return {tensor, place + within<kAxis>(index) * tensor.strides[kAxis]};
  }
  template <int kAxis>
  __device__ __forceinline__ Entry near(int index) const {
    return {tensor, place + std::int64_t{within<kAxis>(index)} * static_cast<int>(tensor.strides[kAxis])};
  }
  template <int kAxis>
  __device__ __forceinline__ Entry next(int index) const {
    return {tensor, place + std::int64_t{within<kAxis>(index)} * static_cast<int>(sizeof(T))};
  }

  __device__ __forceinline__ float value() const {
    if constexpr (std::is_same_v<T, float>)
      return __ldg(reinterpret_cast<const float*>(place));
    else
      return unpack<T>(__ldg(reinterpret_cast<const std::uint16_t*>(place))).x;
  }

 private:
  template <int kAxis>
  __device__ __forceinline__ int within(int index) const {
    return min(index, tensor.last[kAxis]);
  }
};

/// Whether a table of distances has an entry.
__device__ __forceinline__ bool has_entry(const ChangeTensor& table, int entry) {
  return static_cast<unsigned>(entry) <= static_cast<unsigned>(table.last[3]);
}

__device__ __forceinline__ float sqrt_of(float x) { return sqrtf(x); }
__device__ __forceinline__ float reciprocal_of(float x) { return reciprocal_approximate(x); }

/// Returns an angle less whole turns, from −π to π.
__device__ __forceinline__ float within_a_turn(float x) {
  constexpr float kTurns = 0.159154937F, kRest = 6.42063821e-9F;  // 1 / 2π, and what its first part lacks
  const float whole = rintf(x * kTurns);
  return fmaf(x, kRest, fmaf(x, kTurns, -whole)) * 6.28318531F;
}
__device__ __forceinline__ float cos_of(float x) { return __cosf(within_a_turn(x)); }
__device__ __forceinline__ float sin_of(float x) { return __sinf(within_a_turn(x)); }

/// The quotient rounded down.
__device__ __forceinline__ int floor_quotient(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/// Whether the values of a bias come in eights.
template <class Change>
concept TakesEights = requires {
  typename Change::Bias;
};

template <class Change, class Place>
__device__ __forceinline__ Change change_at(const ChangeOperands& operands, const Place& place) {
  if constexpr (Change::kLocates)
    return Change(operands, place.batch, place.head, place.row(lane_index()), place.column(lane_index()));
  else
    return Change(operands, 0, 0, 0, 0);
}

/// Turns a tile's products into the powers of two of changed scores, ahead of hiding. As they are multiplied by nothing
/// later on, a row's maximum is exactly its largest score, however large the change makes it.
template <class Change, class Place, int kUnits, int kEights>
__device__ __forceinline__ void change_tile(float (&s)[kUnits][kEights][4], const ChangeOperands& operands,
                                            const BiasArguments& bias, const Place& place) {
  const Change change = change_at<Change>(operands, place);
  if constexpr (TakesEights<Change>) {
    using Values = BiasValues<kUnits, kEights, Place>;
    const auto numbers = [](std::uint32_t word) { return unpack<typename Change::Bias>(word); };
    const auto add = [&](int unit, int eight, int i, float value) {
      s[unit][eight][i] =
          change.biased(s[unit][eight][i], value, Place::rows_to(unit, eight, i), Place::columns_to(unit, eight, i));
    };
    if constexpr (Values::kTakesEights)
      return Values(bias, place).for_each_eight(numbers, add);
    else
      return Values(bias, place).for_each_pair(numbers, add);
  }
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[unit][eight][i] =
            change.value(s[unit][eight][i], Place::rows_to(unit, eight, i), Place::columns_to(unit, eight, i));
}

/// Weighs changed scores (changed_weights.cuh).
template <class Change, class Place, class Rows>
struct ChangeWeights {
  static constexpr bool kGuards = Change::kGuards, kLoadsEights = false;
  const Change& change;
  const Rows& lse_log2;

  __device__ __forceinline__ ChangedWeight operator()(int unit, int eight, int i, float product) const {
    const int down = Place::rows_to(unit, eight, i), right = Place::columns_to(unit, eight, i);
    float slope = 1, changed;
    if constexpr (Change::kSlope)
      changed = change.value(product, down, right, slope);
    else
      changed = change.value(product, down, right);
    return weight(unit, eight, i, changed, slope);
  }
  __device__ __forceinline__ ChangedWeight weight(int unit, int eight, int i, float changed, float slope) const {
    float exponent = changed - lse_log2.at(unit, eight, i);
    // Padding is not masked: its probability is 0 whatever it, or a hidden key, has.
    if constexpr (Change::kMakesNan) exponent = fmaxf(exponent, -INFINITY);
    return {exp2_approximate(exponent), slope};
  }
};

/// Does so for transposed scores of two units, with the values of a bias that come in eights.
template <class Change, class Place, class Rows, int kEights>
struct BiasedWeights : ChangeWeights<Change, Place, Rows> {
  static constexpr bool kLoadsEights = true;
  const BiasArguments& bias;
  const Place& place;

  /// The weights of an eight, whose values are at hand.
  struct OfEight {
    const BiasedWeights& weights;
    std::uint32_t words[4];

    __device__ __forceinline__ ChangedWeight operator()(int unit, int eight, int i, float product) const {
      const float2 two = unpack<typename Change::Bias>(words[2 * unit + i / 2]);
      const float value = i % 2 == 0 ? two.x : two.y;
      const int down = Place::rows_to(unit, eight, i), right = Place::columns_to(unit, eight, i);
      float slope = 1, changed;
      if constexpr (Change::kSlope)
        changed = weights.change.biased(product, value, down, right, slope);
      else
        changed = weights.change.biased(product, value, down, right);
      return weights.weight(unit, eight, i, changed, slope);
    }
  };
  __device__ __forceinline__ OfEight of_eight(int eight) const {
    using Values = BiasValues<2, kEights, Place>;
    OfEight made{*this, {}};
    Values(bias, place).load_eights(made.words, eight, 0);
#pragma unroll
    for (std::uint32_t& word : made.words) word = Values::arranged(word);
    return made;
  }
};

/// Returns the weights of the scores that lie at `place`.
template <int kUnits, int kEights, class Place, class Change, class Rows>
__device__ __forceinline__ auto change_weights(const Change& change, [[maybe_unused]] const BiasArguments& bias,
                                               const Place& place, const Rows& lse_log2) {
  if constexpr (TakesEights<Change> && !Place::kPairsColumns && kUnits == 2)
    return BiasedWeights<Change, Place, Rows, kEights>{{change, lse_log2}, bias, place};
  else
    return ChangeWeights<Change, Place, Rows>{change, lse_log2};
}

/// Turns products into probabilities times the derivatives of changed scores by what the bias has for them.
template <class Change, class Place, int kUnits, int kEights, class Rows>
__device__ __forceinline__ void weigh_by_bias(float (&s)[kUnits][kEights][4], const ChangeOperands& operands,
                                              const Rows& lse_log2, const Place& place) {
  const Change change = change_at<Change>(operands, place);
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight)
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float slope, bias_slope;
        const float changed = change.value(s[unit][eight][i], Place::rows_to(unit, eight, i),
                                           Place::columns_to(unit, eight, i), slope, bias_slope);
        const float p = exp2_approximate(changed - lse_log2.at(unit, eight, i));
        s[unit][eight][i] = p > 0 ? p * bias_slope : 0;  // NaN is not above 0, and a derivative may be infinite
      }
}

}  // namespace flashmask::cuda
