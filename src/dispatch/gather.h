#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flashmask/attention.h"
#include "flashmask/reorder.h"

namespace flashmask {

/// Bytes of the tensors of a call, gathered.
std::size_t gathered_bytes(const Problem& problem, Direction direction);

/// Takes the tensors of a call from the caller's order of tokens to that of a plan's mask, and back. One permutation a
/// batch entry of the mask, for rows (q, o, lse and their gradients) and for columns (k, v and theirs).
class TokenGatherer {
 public:
  /// `memory` is that of gathered_bytes(), aligned like a workspace.
  TokenGatherer(const Reordering& reordering, Executor& executor, std::byte* memory)
      : reordering_(reordering), executor_(executor), memory_(memory) {}

  /// Inputs copied, outputs without values yet.
  ForwardTensors gather(const ForwardTensors& tensors);
  BackwardTensors gather(const BackwardTensors& tensors);

  /// Copies the outputs back.
  void scatter(const ForwardTensors& gathered, const ForwardTensors& tensors) const;
  void scatter(const BackwardTensors& gathered, const BackwardTensors& tensors) const;

 private:
  /// A tensor of the same shape in the memory, without values.
  TensorView place(const TensorView& tensor);
  /// Absent for an absent one.
  TensorView gather(const TensorView& tensor, std::span<const std::int64_t> order);
  void scatter(const TensorView& gathered, const TensorView& tensor, std::span<const std::int64_t> order) const;

  const Reordering& reordering_;
  Executor& executor_;
  std::byte* memory_;
};

}  // namespace flashmask
