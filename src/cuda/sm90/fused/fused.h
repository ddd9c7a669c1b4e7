// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/backward_workspace.h"
#include "cuda/common/views.h"
#include "flashmask/attention.h"
#include "plan/kernel.h"

namespace flashmask::cuda::sm90 {

inline constexpr int kFusedHeadDim = 128;
inline constexpr TileShape kFusedTile{64, 64};

/// Launches one kernel for all gradients of heads of up to kFusedHeadDim dims (fused_kernel.cuh), each sum in one
/// order: the fastest backward where rows are short. `rows`, `columns`: maps of kFusedTile by rows and by columns of
/// tiles. The statistics of rows must be in the workspace; `next_item` must point to 0.
template <MaskForm kForm>
void launch_fused(const Plan& plan, const BackwardTensors& tensors, const TileMapView& rows, const TileMapView& columns,
                  const TileChoice& choice, const BackwardWorkspace& workspace, const KernelExecution& execution,
                  int* next_item);

}  // namespace flashmask::cuda::sm90
