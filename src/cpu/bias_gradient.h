// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cpu/launch.h"

/// The gradient of a bias tensor where a value stands for several scores: each is a sum in one order, whichever threads
/// run it.
namespace flashmask::cpu {

/// Adds the gradients of the biased scores of one head in row tiles `rows` × a column tile to `sum`, [kBackwardRows]
/// [kBackwardColumns].
using AddTiles = std::function<void(const HeadTile& columns, RunList rows, int worker, float* sum)>;

/// Whether no two scores share a value, so that the backward writes their gradients as it finds them.
bool has_own_values(const Problem& problem, const TensorView& values);

/// Floats of memory that the gradient needs; none where the problem has no bias tensor.
std::size_t bias_gradient_floats(const Problem& problem, int workers);

/// Sets the gradients of a head's scores in a column tile to zero where no row sees them: outside of the row tiles
/// `visited`.
void clear_unvisited(const TensorView& grad_bias, const HeadTile& columns, RunList visited);

/// Sums the gradient up in a pass over all tiles.
void sum_bias_gradient(const Plan& plan, const BackwardTensors& tensors, float* memory, Executor& executor, int workers,
                       const AddTiles& add);

}  // namespace flashmask::cpu
