// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashmask/linear_attention.h"
#include "flashmask/mask.h"
#include "flashmask/nodes.h"

namespace flashmask {

/// Returns the nodes of a problem's whole batch. Throws where the mask does not fit the problem or is no tree.
Nodes linear_nodes(const Mask& mask, const LinearProblem& problem);

}  // namespace flashmask
