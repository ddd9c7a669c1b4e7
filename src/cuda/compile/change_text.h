// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cuda/views/change.h"
#include "flashmask/attention.h"
#include "plan/generate_change.h"

namespace flashmask::cuda::compile {

/// The tensors of a call that a change of scores reads.
struct ChangeTensors {
  const AlibiTensors& alibi;
  const BiasTensor& bias;
  const ScoreOperands& operands;
};
/// Returns the tensors that a change reads among ForwardTensors or BackwardTensors.
template <class Tensors>
ChangeTensors change_tensors(const Tensors& of) {
  return {of.alibi, of.bias, of.operands};
}

/// Returns what the text of a change knows of these tensors.
TensorForms forms_of(const ScoreChange& change, const ChangeTensors& tensors);

/// Returns the text of struct Change (cuda/scores/score_change.cuh) for a change of scores. Its numbers are
/// operands, so that changes of the same steps have the same text. Throws as generate_change() does.
std::string change_text(const ScoreChange& change, const TensorForms& forms);

/// Returns the operands that this text reads in a call.
ChangeOperands change_operands(const Problem& problem, const ChangeTensors& tensors);

}  // namespace flashmask::cuda::compile
