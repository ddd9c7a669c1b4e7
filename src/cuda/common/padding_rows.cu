// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/padding_rows.cuh"
