// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cuda/views/change.h"
#include "flashmask/attention.h"

namespace flashmask::cuda::compile {

/// Returns the text of struct Change (cuda/scores/score_change.cuh) for a problem's change of scores. Its numbers
/// are operands, so that changes of the same steps have the same text.
std::string change_text(const ScoreChange& change);

/// Returns the operands that this text reads in a call.
ChangeOperands change_operands(const Problem& problem, const AlibiTensors& alibi, const BiasTensor& bias,
                               const ScoreOperands& operands = {});

}  // namespace flashmask::cuda::compile
