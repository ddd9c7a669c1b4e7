// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flashmask/attention.h"
#include "flashmask/reorder.h"

namespace flashmask {

/// Returns the bytes that the gathered tensors of a call take. `problem`: the kernel's, whose tokens are in its order.
std::size_t gathered_bytes(const Problem& problem, Direction direction);

/// Which order the tokens of a tensor have in a plan that moves them: that of rows (q, o, lse and their gradients) or
/// that of columns (k, v and theirs).
enum class TokenSide : std::uint8_t { rows, columns };

/// Copies the tokens of a tensor between the caller's order and a plan's. Where that has padding, gathered padding is
/// zero.
class TokenMover {
 public:
  TokenMover() = default;
  virtual ~TokenMover() = default;
  TokenMover(const TokenMover&) = delete;
  TokenMover& operator=(const TokenMover&) = delete;

  virtual void gather(const TensorView& from, const TensorView& to, TokenSide side) const = 0;
  virtual void scatter(const TensorView& from, const TensorView& to, TokenSide side) const = 0;
};

/// Returns a mover for host memory, which shares the work out over the executor.
std::unique_ptr<const TokenMover> host_mover(const Reordering& reordering, Executor& executor);
/// Returns a mover for the memory of a device, which works on a stream. `plan`: the one that the kernel runs under.
std::unique_ptr<const TokenMover> device_mover(const Plan& plan, void* stream);

/// Takes the tensors of a call from the caller's order of tokens to that of a plan's mask, and back. There is one order
/// per batch entry of the mask.
class TokenGatherer {
 public:
  /// `memory` has gathered_bytes() bytes of `problem`, the kernel's, and is aligned like a workspace.
  TokenGatherer(const TokenMover& mover, std::byte* memory, const Problem& problem)
      : mover_(mover), memory_(memory), rows_(problem.query_length), columns_(problem.key_length) {}

  /// Returns the tensors in the plan's order: inputs copied, outputs uninitialised.
  ForwardTensors gather(const ForwardTensors& tensors);
  BackwardTensors gather(const BackwardTensors& tensors);

  /// Copies the outputs back.
  void scatter(const ForwardTensors& gathered, const ForwardTensors& tensors) const;
  void scatter(const BackwardTensors& gathered, const BackwardTensors& tensors) const;

 private:
  /// Returns an uninitialised tensor in the memory, of the same shape but for its tokens.
  TensorView allocate(const TensorView& tensor, TokenSide side);
  /// Returns a gathered copy; absent if the tensor is absent.
  TensorView gather(const TensorView& tensor, TokenSide side);

  const TokenMover& mover_;
  std::byte* memory_;
  std::int64_t rows_, columns_;  ///< tokens of each side in the plan's order
};

}  // namespace flashmask
