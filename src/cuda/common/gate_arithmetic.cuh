// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <math.h>

#include "cuda/common/linear_arguments.h"

/// Arithmetic of gates and of scales of states, which are sums of gates in powers of two.
namespace flashmask::cuda {

/// Returns the log of a gate in powers of two. Below −2^20 e^x is 0 in every sum, and pairs of float32 still tell
/// neighbouring gates apart.
__device__ __forceinline__ double gate_powers(float gate) {
  const double x = gate;
  return (x < -1048576.0 ? -1048576.0 : x) * kLog2E;
}

/// 0 where x is NaN.
__device__ __forceinline__ double at_least_zero(double x) { return x > 0 ? x : 0; }
__device__ __forceinline__ double larger(double x, double y) { return x > y ? x : y; }

/// Splits a number into a pair whose sum has twice the digits of float32.
__device__ __forceinline__ void split(double x, float& high, float& low) {
  high = static_cast<float>(x);
  low = static_cast<float>(x - static_cast<double>(high));
}
__device__ __forceinline__ float power(double exponent) { return exp2f(static_cast<float>(exponent)); }

}  // namespace flashmask::cuda
