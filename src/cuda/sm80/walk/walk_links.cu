// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/walk/link_kernels.cuh"
