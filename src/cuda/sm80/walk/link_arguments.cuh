// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/sm80/walk/stretch_gates.cuh"

/// The small kernels around the walks, which no dtype matters to: their arguments and names. link_kernels.cuh defines
/// them.
namespace flashmask::cuda::sm80 {

struct GateArguments {
  WalkPlanView plan;
  GateTensor log_forget, log_input;
  WalkGates gates;  ///< out
  WalkLinks links;  ///< out: decay, own_scale
};

struct GateMemory {
  double totals[kWalkSteps], tops[kWalkSteps];
};

/// Sums up gates, a block of kWalkThreads threads per stretch and head.
__global__ void walk_gates_kernel(const __grid_constant__ GateArguments arguments);

struct LinkArguments {
  WalkPlanView plan;
  int trees;
  WalkScales initial_scale;
  WalkLinks links;
  WalkScales final_scale;  ///< out, by node
};

/// Finds the scales of states behind stretches, a thread per tree and head.
__global__ void walk_links_kernel(const __grid_constant__ LinkArguments arguments);

inline constexpr int kCarryThreads = 256;

struct CarryArguments {
  WalkPlanView plan;
  int trees;
  int key_dim, value_dim;
  WalkLinks links;
  WalkStates sums;   ///< what stretches add; forwards they become the states behind them
  WalkStates begin;  ///< forwards in: initial states, by root. Backwards out: their gradients
  WalkStates end;    ///< forwards out: final states, by node. Backwards in: their gradients
  WalkStates grads;  ///< backwards out: gradients of the states behind stretches, by place

  __host__ __device__ __forceinline__ int numbers() const {
    return key_dim * value_dim + (sums.vector != nullptr ? key_dim : 0);
  }
};

/// Turns what stretches add into the states behind them, a thread per number of a state, tree and head.
__global__ void walk_carry_kernel(const __grid_constant__ CarryArguments arguments);
/// Turns what stretches add to gradients into the gradients of the states behind them, from the last to the first.
__global__ void walk_carry_back_kernel(const __grid_constant__ CarryArguments arguments);

}  // namespace flashmask::cuda::sm80
