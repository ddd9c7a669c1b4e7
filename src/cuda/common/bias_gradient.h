// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/common/backward_workspace.h"
#include "cuda/common/bias_gradient_arguments.h"
#include "cuda/common/views.h"

namespace flashmask::cuda {

/// Makes the arguments of a launch whose map, by columns, has tiles of map_tile; without the operands of a compiled
/// change.
inline BiasGradientArguments bias_gradient_arguments(const Problem& problem, const BackwardTensors& tensors,
                                                     const BackwardStatistics& rows, float* partial,
                                                     const TileMapView& map, TileShape map_tile, const MaskView& mask,
                                                     const ScoreArguments& score) {
  const TensorView& to = tensors.grad_bias;
  const auto chunks = [](std::int64_t dims) { return static_cast<int>((dims + 63) / 64); };
  const bool of_rows =
      to.shape[2] == problem.query_length && (problem.query_length != 1 || problem.change.bias() == ScoreBias::tensor);
  BiasGradientArguments made{};
  made.q = tensor_rows(tensors.q);
  made.k = tensor_rows(tensors.k);
  made.v = tensor_rows(tensors.v);
  made.grad_o = tensor_rows(tensors.grad_o);
  made.statistics = rows;
  made.key_length = static_cast<int>(problem.key_length);
  made.query_heads = static_cast<int>(problem.query_heads);
  made.head_ratio = static_cast<int>(problem.query_heads / problem.kv_heads);
  made.narrow = problem.head_dim <= 32 && problem.value_dim <= 32;
  made.score_chunks = chunks(problem.head_dim);
  made.chunks = made.narrow ? 1 : made.score_chunks + chunks(problem.value_dim);
  made.row_tiles = static_cast<int>(bias_tiles(problem.query_length));
  made.column_tiles = static_cast<int>(bias_tiles(problem.key_length));
  made.list_batches = static_cast<int>(to.shape[0] == 1 ? problem.batch : 1);
  made.list_heads = static_cast<int>(to.shape[1] == 1 ? problem.query_heads : 1);
  made.lists_across = static_cast<int>(to.shape[1]);
  made.sums = of_rows                                         ? BiasSums::tiles
              : problem.change.bias() == ScoreBias::distances ? BiasSums::diagonals
                                                              : BiasSums::columns;
  made.keeps_bias =
      made.sums == BiasSums::tiles && tensors.bias.values.dtype == problem.dtype && problem.change.is_cap_and_bias();
  made.score = score;
  made.map = map;
  made.map_tile = {map_tile.rows, map_tile.columns};
  made.mask = mask;
  made.gradient = bias_arguments(problem, {to, tensors.bias.origin}, 1);
  made.out = to.data;
  made.parts = made.sums == BiasSums::tiles && made.list_batches > 1 ? static_cast<int>(bias_parts(problem)) : 1;
  made.partial = partial;
  return made;
}

/// Computes the gradient of a bias on some GPUs, for some calls: returns false where it does not serve a call, and does
/// nothing then. Arguments as of launch_bias_gradient().
using BiasGradientPass = bool (*)(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                                  const KernelExecution& execution, const DeviceMap& map);

/// Returns the passes that this build's families of kernels have of their own, best first.
std::vector<BiasGradientPass> bias_gradient_passes();

/// Computes the gradient of a bias, if a call wants it, behind the statistics of rows: by the first pass that serves
/// the call, else by mma.sync. map: of the plan, by columns.
void launch_bias_gradient(const Plan& plan, const BackwardTensors& tensors, const BackwardWorkspace& workspace,
                          const KernelExecution& execution, const DeviceMap& map);

}  // namespace flashmask::cuda
