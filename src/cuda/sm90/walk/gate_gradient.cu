// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/walk/gate_gradient.cuh"
