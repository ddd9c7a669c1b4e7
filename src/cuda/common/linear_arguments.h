// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmask/linear_attention.h"

/// Tensors of linear attention beside q, k, v and o, as kernels take them: plain pointers and strides.
namespace flashmask::cuda {

inline constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

/// The gates of a call, float32.
struct GateTensor {
  const float* data;  ///< null: all are 0
  std::int64_t batch, row, head;

  __device__ __forceinline__ float of(int batch_entry, int token, int head_number) const {
    return data == nullptr ? 0 : data[batch_entry * batch + token * row + head_number * head];
  }
};

/// Where the gradients of a call's gates go, float32.
struct GateGradients {
  float* data;  ///< null: not wanted
  std::int64_t batch, row, head;
};

/// Scales that the caller gives to initial states, or asks for.
struct WalkScales {
  float* data;  ///< null: none
  std::int64_t item, head;
};

/// States of float32, one matrix and maybe one vector per item and head; `state` null: there are none.
struct WalkStates {
  float* state;
  std::int64_t item, head, key, value;  ///< strides
  float* vector;
  std::int64_t vector_item, vector_head;
};

inline GateTensor gate_tensor(const TensorView& gates) {
  if (!gates.present()) return {};
  return {static_cast<const float*>(gates.data), gates.strides[0], gates.strides[1], gates.strides[2]};
}

inline GateGradients gate_gradients(const TensorView& gates) {
  if (!gates.present()) return {};
  return {static_cast<float*>(gates.data), gates.strides[0], gates.strides[1], gates.strides[2]};
}

inline WalkScales scales_of(const LinearStates& states) {
  if (!states.log_scale.present()) return {};
  return {static_cast<float*>(states.log_scale.data), states.log_scale.strides[0], states.log_scale.strides[1]};
}

inline WalkStates states_of(const LinearStates& states) {
  WalkStates view{};
  if (!states.state.present()) return view;
  const auto& strides = states.state.strides;
  view.state = static_cast<float*>(states.state.data);
  view.item = strides[0], view.head = strides[1], view.key = strides[2], view.value = strides[3];
  if (!states.normalizer.present()) return view;
  view.vector = static_cast<float*>(states.normalizer.data);
  view.vector_item = states.normalizer.strides[0], view.vector_head = states.normalizer.strides[1];
  return view;
}

}  // namespace flashmask::cuda
