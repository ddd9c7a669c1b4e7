// SPDX-License-Identifier: Apache-2.0
#include "jax/call.h"

#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "flashmask/builders.h"
#include "flashmask/error.h"
#include "flashmask/startend_row_indices.h"

namespace flashmask::jax {
namespace {

DType dtype_of(const XLA_FFI_Buffer& buffer) {
  switch (buffer.dtype) {
    case XLA_FFI_DataType_F32:
    case XLA_FFI_DataType_F64:
      return DType::f32;
    case XLA_FFI_DataType_BF16:
      return DType::bf16;
    case XLA_FFI_DataType_F16:
      return DType::f16;
    default:
      throw Error(Status::invalid_argument, "jax: an array has XLA's dtype number " + std::to_string(buffer.dtype) +
                                                "; expected float32, bfloat16, float16 or float64");
  }
}

void check_rank(const XLA_FFI_Buffer& buffer, bool fits) {
  if (!fits)
    throw Error(Status::invalid_argument, "jax: an array has " + std::to_string(buffer.rank) +
                                              " dimensions; call flashmask.jax.attention, which checks them");
}

std::span<std::byte> bytes_of(const XLA_FFI_Buffer& buffer, std::size_t element) {
  const std::int64_t count =
      std::accumulate(buffer.dims, buffer.dims + buffer.rank, std::int64_t{1}, std::multiplies());
  return {static_cast<std::byte*>(buffer.data), static_cast<std::size_t>(count) * element};
}

MaskOperand mask_of(const XLA_FFI_Buffer& buffer, const Problem& problem, bool causal) {
  check_rank(buffer, buffer.rank == 4);
  MaskOperand mask{.shape = {buffer.dims[0], buffer.dims[1], problem.query_length, problem.key_length}};
  if (buffer.dtype == XLA_FFI_DataType_U8) {
    mask.kind = MaskKind::bits;
    mask.bytes = bytes_of(buffer, 1);
    return mask;
  }
  mask.kind = MaskKind::row_indices;
  mask.bytes = bytes_of(buffer, sizeof(std::int32_t));
  mask.vectors = static_cast<int>(buffer.dims[3]);
  mask.causal = causal;
  return mask;
}

/// The problem of q, k and v, and what attributes say of it.
Problem problem_of(const Call& call, const Frame& frame) {
  const auto &q = call.q.shape, &k = call.k.shape, &v = call.v.shape;
  Problem problem{.batch = q[0],
                  .query_length = q[1],
                  .key_length = k[1],
                  .query_heads = q[2],
                  .kv_heads = k[2],
                  .head_dim = q[3],
                  .value_dim = v[3],
                  .dtype = call.q.dtype,
                  .device = call.device,
                  .dropout = frame.number("dropout"),
                  .change = ScoreChange::parse(frame.text("change"))};
  const double scale = frame.number("scale");
  if (scale != 0) problem.scale = scale;
  return problem;
}

void read_mask_and_options(Call& call, Frame& frame) {
  call.options.deterministic = frame.flag("deterministic");
  call.options.invariant = frame.flag("invariant");
  call.mask_name = {frame.integer("mask_name_high"), frame.integer("mask_name_low")};
  if (frame.flag("has_mask")) call.mask = mask_of(frame.next_operand(), call.problem, frame.flag("causal"));
  call.mask.most_documents = frame.integer("most_documents");
}

}  // namespace

std::span<const std::int32_t> MaskOperand::row_indices() const {
  return {reinterpret_cast<const std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)};
}

std::span<const std::uint8_t> MaskOperand::bits() const {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

TensorView contiguous_view(const XLA_FFI_Buffer& buffer, Device device) {
  TensorView view{.data = buffer.data, .dtype = dtype_of(buffer), .device = device};
  check_rank(buffer, buffer.rank >= 1 && buffer.rank <= static_cast<std::int64_t>(view.shape.size()));
  view.rank = static_cast<int>(buffer.rank);
  std::int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = buffer.dims[axis];
    view.strides[axis] = stride;
    stride *= buffer.dims[axis];
  }
  return view;
}

TensorView Call::view(const XLA_FFI_Buffer& buffer) const {
  check_rank(buffer, buffer.rank == 4);
  TensorView view = contiguous_view(buffer, device);
  if (heads_first) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  }
  return view;
}

Call read_call(Frame& frame, Device device) {
  Call call{.device = device, .heads_first = frame.flag("heads_first")};
  const XLA_FFI_Buffer& q = frame.next_operand();
  call.double_precision = q.dtype == XLA_FFI_DataType_F64;
  call.q = call.view(q);
  call.k = call.next_operand(frame);
  call.v = call.next_operand(frame);
  call.problem = problem_of(call, frame);
  read_mask_and_options(call, frame);
  if (frame.flag("has_dropout_words"))
    call.dropout_words = static_cast<const std::uint32_t*>(frame.next_operand().data);
  const auto read = [&](const char* flag, TensorView& to) {
    if (frame.flag(flag)) to = contiguous_view(frame.next_operand(), device);
  };
  read("has_sinks", call.sinks);
  read("has_alibi_slopes", call.alibi.slopes);
  read("has_query_positions", call.alibi.query_positions);
  read("has_key_positions", call.alibi.key_positions);
  read("has_bias", call.bias.values);
  call.bias.origin = frame.integer("distance_origin");
  for (std::size_t i = 0; i < call.operands.size(); ++i)
    read(("has_operand" + std::to_string(i)).c_str(), call.operands[i]);
  if (frame.flag("has_plan")) call.plan = bytes_of(frame.next_operand(), 1);
  return call;
}

Call read_plan_call(Frame& frame, Device device) {
  Call call{.device = device};
  call.problem = {.batch = frame.integer("batch"),
                  .query_length = frame.integer("query_length"),
                  .key_length = frame.integer("key_length"),
                  .query_heads = frame.integer("query_heads"),
                  .kv_heads = frame.integer("kv_heads"),
                  .head_dim = frame.integer("head_dim"),
                  .value_dim = frame.integer("value_dim"),
                  .dtype = static_cast<DType>(frame.integer("dtype")),
                  .device = device,
                  .dropout = frame.number("dropout"),
                  .change = ScoreChange::parse(frame.text("change"))};
  read_mask_and_options(call, frame);
  call.plan = bytes_of(frame.next_result(), 1);
  return call;
}

ForwardTensors forward_tensors(const Call& call, Frame& frame) {
  const TensorView o = call.next_result(frame);
  const TensorView lse = contiguous_view(frame.next_result(), call.device);
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          .o = o,
          .lse = lse,
          .sinks = call.sinks,
          .alibi = call.alibi,
          .bias = call.bias,
          .operands = call.operands};
}

BackwardTensors backward_tensors(const Call& call, Frame& frame) {
  BackwardTensors tensors;
  tensors.q = call.q;
  tensors.k = call.k;
  tensors.v = call.v;
  const bool differentiates_sinks = frame.flag("has_grad_sinks");
  // For the other gradients only the reference needs the sinks, as it computes o anew.
  if (differentiates_sinks || call.double_precision) tensors.sinks = call.sinks;
  tensors.alibi = call.alibi;
  tensors.bias = call.bias;
  tensors.operands = call.operands;
  tensors.o = call.next_operand(frame);
  tensors.lse = contiguous_view(frame.next_operand(), call.device);
  tensors.grad_o = call.next_operand(frame);
  if (frame.flag("has_grad_lse")) tensors.grad_lse = contiguous_view(frame.next_operand(), call.device);
  tensors.grad_q = call.next_result(frame);
  tensors.grad_k = call.next_result(frame);
  tensors.grad_v = call.next_result(frame);
  if (differentiates_sinks) tensors.grad_sinks = contiguous_view(frame.next_result(), call.device);
  if (frame.flag("has_grad_bias")) tensors.grad_bias = contiguous_view(frame.next_result(), call.device);
  return tensors;
}

Mask read_mask(const Call& call, Executor& executor) {
  const MaskOperand& mask = call.mask;
  switch (mask.kind) {
    case MaskKind::row_indices:
      return from_startend_row_indices(mask.row_indices(), mask.shape, mask.vectors, mask.causal);
    case MaskKind::bits:
      return from_packed(mask.shape, mask.bits(), executor);
    default:
      return masks::full(call.problem.query_length, call.problem.key_length);
  }
}

DropoutState dropout_state(const Call& call) {
  const std::uint32_t* const words = call.dropout_words;
  if (words == nullptr) return {};
  return {words[0] | std::uint64_t{words[1]} << 32, words[2] | std::uint64_t{words[3]} << 32};
}

}  // namespace flashmask::jax
