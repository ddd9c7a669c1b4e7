// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "flashmask/attention.h"
#include "flashmask/dropout.h"
#include "flashmask/executor.h"
#include "flashmask/mask.h"
#include "jax/frame.h"

namespace flashmask::jax {

/// How a mask is held in an array: not at all where every query sees every key; int32 [batch, heads, columns, vectors],
/// as in startend_row_indices.h; or bits, uint8 [batch, heads, rows, ⌈columns / 8⌉], as from_packed() takes them.
enum class MaskKind : std::uint8_t { none, row_indices, bits };

struct MaskOperand {
  MaskKind kind = MaskKind::none;
  std::span<const std::byte> bytes = {};
  MaskShape shape = {};
  int vectors = 0;                  ///< row indices only
  bool causal = false;              ///< row indices only
  std::int64_t most_documents = 0;  ///< row indices only; as DeviceRowIndices says, 0: not known

  std::span<const std::int32_t> row_indices() const;
  std::span<const std::uint8_t> bits() const;
};

/// What the attributes of a call and the operands that all calls share say.
struct Call {
  /// The next operand, or the next result, as o, q, k, v or one of their gradients are laid out.
  TensorView next_operand(Frame& frame) const { return view(frame.next_operand()); }
  TensorView next_result(Frame& frame) const { return view(frame.next_result()); }

  Device device;
  bool heads_first = false;       ///< tensors are (batch, heads, sequence, head dim)
  bool double_precision = false;  ///< arrays hold doubles, which only the reference computes; views say float32
  TensorView q = {}, k = {}, v = {};
  Problem problem = {};
  PlanOptions options = {};
  MaskOperand mask = {};
  std::array<std::int64_t, 2> mask_name{};  ///< a hash of the mask's contents; zeros: they are not known beforehand
  const std::uint32_t* dropout_words = nullptr;  ///< [4], on the device: low and high word of seed and of offset
  TensorView sinks = {};
  AlibiTensors alibi = {};
  BiasTensor bias = {};
  ScoreOperands operands = {};
  std::span<std::byte> plan = {};  ///< on a GPU: memory that a call of plan() filled; empty: there is none

  TensorView view(const XLA_FFI_Buffer& buffer) const;
};

/// Reads a forward or a backward. Operands come in this order: q, k, v, then those that are given of mask, dropout
/// words, sinks, ALiBi's slopes, positions of queries and of keys, a bias or a table by distance, the operands of a
/// function of scores, and plan.
Call read_call(Frame& frame, Device device);

/// Reads a call of plan(), whose operand is the mask and whose attributes say the problem.
Call read_plan_call(Frame& frame, Device device);

/// Reads the results of a forward.
ForwardTensors forward_tensors(const Call& call, Frame& frame);

/// Reads the operands that a backward has besides, o, lse, grad_o and perhaps grad_lse, and its results.
BackwardTensors backward_tensors(const Call& call, Frame& frame);

/// A view of a contiguous buffer as it lies. Throws where kernels know no such dtype or rank.
TensorView contiguous_view(const XLA_FFI_Buffer& buffer, Device device);

/// Reads a mask, and the seed and offset of dropout, that lie in memory of the host.
Mask read_mask(const Call& call, Executor& executor);
DropoutState dropout_state(const Call& call);

}  // namespace flashmask::jax
