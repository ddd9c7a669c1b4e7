// SPDX-License-Identifier: Apache-2.0
#include "plan/tensor_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "flashmask/error.h"
#include "plan/overlap.h"

namespace flashmask {
namespace {

using Shape = TensorCheck::Shape;

template <class Sizes>
std::string shape_text(const Sizes& sizes, int rank) {
  std::string text = "(";
  for (int axis = 0; axis < rank; ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(sizes[static_cast<std::size_t>(axis)]);
  return text + ")";
}

bool is_empty(const Shape& shape) {
  for (const std::int64_t size : shape)
    if (size == 0) return true;
  return false;
}

struct Shapes {
  explicit Shapes(const Problem& p)
      : q{p.batch, p.query_length, p.query_heads, p.head_dim},
        k{p.batch, p.key_length, p.kv_heads, p.head_dim},
        v{p.batch, p.key_length, p.kv_heads, p.value_dim},
        o{p.batch, p.query_length, p.query_heads, p.value_dim},
        lse{p.batch, p.query_heads, p.query_length} {}
  Shape q, k, v, o, lse;
};

bool is_empty(const TensorView& tensor) {
  const auto end = tensor.shape.begin() + tensor.rank;
  return !tensor.present() || std::find(tensor.shape.begin(), end, 0) != end;
}

/// Sinks are one number per head or one per query, in float32 or in the dtype of the call.
void check_sinks(const TensorCheck& check, const Problem& p, const char* name, const TensorView& sinks) {
  const DType dtype = sinks.dtype == DType::f32 ? DType::f32 : p.dtype;
  if (sinks.rank == 3)
    check(name, sinks, dtype, {p.batch, p.query_heads, p.query_length});
  else
    check(name, sinks, dtype, {p.query_heads});
}

/// From here on float32 does not hold every whole number, and distances would be rounded.
constexpr std::int64_t kPositionsEnd = std::int64_t{1} << 24;

/// Functions of scores compute with numbers of tokens in float32.
void check_lengths(const TensorCheck& check, const Problem& p) {
  if (std::max(p.query_length, p.key_length) > kPositionsEnd)
    check.fail("q",
               "a function of scores counts tokens in float32, which does not hold every number from 2^24 on; "
               "expected fewer tokens");
}

/// Positions are read where that takes no waiting, on a CPU.
void check_positions(const TensorCheck& check, const Problem& p, const char* name, const TensorView& positions,
                     std::int64_t length) {
  if (!positions.present()) {
    if (length > kPositionsEnd)
      check.fail(name, "they are absent, and " + std::to_string(length) +
                           " tokens would have positions of 2^24 and more, of which float32 does not hold every one; "
                           "give positions below it");
    return;
  }
  check(name, positions, DType::f32, {positions.shape[0] == 1 ? 1 : p.batch, length});
  if (positions.device.type != DeviceType::cpu) return;
  for (std::int64_t entry = 0; entry < positions.shape[0]; ++entry) {
    const float* row = static_cast<const float*>(positions.data) + entry * positions.strides[0];
    const float* wrong =
        std::find_if(row, row + length, [](float at) { return !(std::abs(at) < static_cast<float>(kPositionsEnd)); });
    if (wrong != row + length)
      check.fail(name, "it holds " + std::to_string(*wrong) +
                           "; expected numbers between -2^24 and 2^24, since only distances count and float32 does not "
                           "hold every number beyond: subtract the same number from all positions of a sequence");
  }
}

void check_alibi(const TensorCheck& check, const Problem& p, const AlibiTensors& alibi) {
  const auto absent = [&](const char* name, const TensorView& tensor) {
    if (tensor.present()) check.fail(name, "it is given, and the plan was made for a problem without ALiBi");
  };
  if (p.change.bias() != ScoreBias::alibi) {
    absent("alibi_slopes", alibi.slopes);
    absent("query_positions", alibi.query_positions);
    return absent("key_positions", alibi.key_positions);
  }
  if (alibi.slopes.rank == 2)
    check("alibi_slopes", alibi.slopes, DType::f32, {p.batch, p.query_heads});
  else
    check("alibi_slopes", alibi.slopes, DType::f32, {p.query_heads});
  if (alibi.query_positions.present() != alibi.key_positions.present())
    check.fail("query_positions", "it is given without key_positions, or they without it; give both or none");
  check_positions(check, p, "query_positions", alibi.query_positions, p.query_length);
  check_positions(check, p, "key_positions", alibi.key_positions, p.key_length);
}

/// The dimensions before the last one are the problem's, or 1.
void check_bias(const TensorCheck& check, const Problem& p, const BiasTensor& bias) {
  const TensorView& values = bias.values;
  if (!has_bias_tensor(p)) {
    if (values.present()) check.fail("bias", "it is given, and the plan was made for a problem without such a bias");
    return;
  }
  const auto either = [&](std::size_t axis, std::int64_t whole) { return values.shape[axis] == 1 ? 1 : whole; };
  const std::int64_t last =
      p.change.bias() == ScoreBias::distances ? std::max<std::int64_t>(values.shape[3], 1) : p.key_length;
  check("bias", values, values.dtype, {either(0, p.batch), either(1, p.query_heads), either(2, p.query_length), last});
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  if (bias.origin < -kLimit || bias.origin > kLimit)
    check.fail("bias", "origin is " + std::to_string(bias.origin) + "; expected a number from -2^31 to 2^31");
}

void check_bias(const TensorCheck& check, const Problem& p, const BackwardTensors& tensors) {
  check_bias(check, p, tensors.bias);
  if (!tensors.grad_bias.present()) return;
  if (!has_bias_tensor(p))
    check.fail("grad_bias", "it is given, and the plan was made for a problem without such a bias");
  const TensorView& values = tensors.bias.values;
  check("grad_bias", tensors.grad_bias, values.dtype, {values.shape.begin(), values.shape.end()});
}

constexpr const char* kOperandNames[] = {"operand 0", "operand 1", "operand 2", "operand 3"};
static_assert(std::size(kOperandNames) == ScoreFunction::kMaxOperands);

/// Operands have as many dimensions as their function reads with indices, and any strides.
void check_operands(const TensorCheck& check, const Problem& p, const ScoreOperands& operands) {
  const ScoreFunction* const function = p.change.function();
  const int count = function == nullptr ? 0 : function->operands();
  for (int i = 0; i < ScoreFunction::kMaxOperands; ++i) {
    TensorView operand = operands[static_cast<std::size_t>(i)];
    const char* const name = kOperandNames[i];
    if (i >= count) {
      if (operand.present()) check.fail(name, "it is given, and the change of scores reads none of that number");
      continue;
    }
    if (operand.rank != function->rank(i))
      check.fail(name, "it has " + std::to_string(operand.rank) + " dimensions; the function reads it with " +
                           std::to_string(function->rank(i)) + " indices");
    if (is_empty(operand)) check.fail(name, "it has no entries; the function reads one for each score");
    operand.strides[static_cast<std::size_t>(operand.rank - 1)] = 1;  // any will do
    check(name, operand, operand.dtype, {operand.shape.begin(), operand.shape.begin() + operand.rank});
  }
  if (count > 0 || (function != nullptr && function->locates())) check_lengths(check, p);
}

/// Returns the tensors that a call reads: those of every call, with its own between them.
template <typename Tensors, typename... Own>
std::array<NamedTensor, 12 + sizeof...(Own)> inputs_of(const Tensors& tensors, const Own&... own) {
  return {{{"q", tensors.q},
           {"k", tensors.k},
           {"v", tensors.v},
           own...,
           {"sinks", tensors.sinks},
           {"alibi_slopes", tensors.alibi.slopes},
           {"query_positions", tensors.alibi.query_positions},
           {"key_positions", tensors.alibi.key_positions},
           {"bias", tensors.bias.values},
           {kOperandNames[0], tensors.operands[0]},
           {kOperandNames[1], tensors.operands[1]},
           {kOperandNames[2], tensors.operands[2]},
           {kOperandNames[3], tensors.operands[3]}}};
}

/// Checks q, k and v.
template <typename Tensors>
void check_inputs(const TensorCheck& check, const Problem& problem, const Shapes& shapes, const Tensors& tensors) {
  check("q", tensors.q, problem.dtype, shapes.q);
  check("k", tensors.k, problem.dtype, shapes.k);
  check("v", tensors.v, problem.dtype, shapes.v);
}

}  // namespace

void TensorCheck::operator()(const char* name, const TensorView& tensor, DType dtype, const Shape& expected) const {
  check_shape(name, tensor, expected);
  if (tensor.dtype != dtype) fail(name, "dtype is " + to_string(tensor.dtype) + "; expected " + to_string(dtype));
  if (tensor.device != device_)
    fail(name, "device is " + to_string(tensor.device) + "; expected " + to_string(device_) + ", that of the call");
  if (is_empty(expected)) return;
  check_strides(name, tensor);
  if (tensor.data == nullptr) fail(name, "data is a null pointer");
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_in_bytes(dtype) != 0)
    fail(name, "data is not aligned to its element of " + std::to_string(size_in_bytes(dtype)) + " bytes");
}

void TensorCheck::fail(const char* name, const std::string& what) const {
  throw Error(Status::invalid_argument, std::string(call_) + ": " + name + ": " + what);
}

void TensorCheck::check_shape(const char* name, const TensorView& tensor, const Shape& expected) const {
  const int rank = static_cast<int>(expected.size());
  constexpr int kMaxRank = std::tuple_size_v<decltype(tensor.shape)>;
  if (tensor.rank < 0 || tensor.rank > kMaxRank)
    fail(name, "rank is " + std::to_string(tensor.rank) + "; expected " + std::to_string(rank) + ", of shape " +
                   shape_text(expected, rank));
  bool same = tensor.rank == rank;
  for (int axis = 0; same && axis < rank; ++axis)
    same = tensor.shape[static_cast<std::size_t>(axis)] == expected[static_cast<std::size_t>(axis)];
  if (!same)
    fail(name, "shape is " + (tensor.present() ? shape_text(tensor.shape, tensor.rank) : "absent") + "; expected " +
                   shape_text(expected, rank));
}

void TensorCheck::check_strides(const char* name, const TensorView& tensor) const {
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1)
    fail(name, "the last stride is " + std::to_string(tensor.strides[last]) +
                   "; expected 1: make the tensor contiguous in its last dimension");
}

bool has_float32_key_gradients(const Problem& problem, const BackwardTensors& tensors) {
  return tensors.grad_k.dtype == DType::f32 && problem.dtype != DType::f32;
}

void check_outputs(const TensorCheck& check, std::span<const NamedTensor> outputs,
                   std::span<const NamedTensor> inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = outputs[i].name;
    const TensorView& output = outputs[i].tensor;
    if (is_empty(output)) continue;
    if (overlaps_itself(output))
      check.fail(name.c_str(), "strides are " + shape_text(output.strides, output.rank) + " of shape " +
                                   shape_text(output.shape, output.rank) +
                                   ", so that elements share memory; expected memory for each element of an output");
    const auto check_apart = [&](const NamedTensor& other) {
      if (!is_empty(other.tensor) && overlap(output, other.tensor))
        check.fail(name.c_str(),
                   "its memory overlaps that of " + other.name + "; expected memory of its own for each output");
    };
    std::ranges::for_each(inputs, check_apart);
    std::ranges::for_each(outputs.first(i), check_apart);
  }
}

void check_tensors(const Problem& problem, const ForwardTensors& tensors) {
  const TensorCheck check("forward", problem.device);
  const Shapes shapes(problem);
  check_inputs(check, problem, shapes, tensors);
  check("o", tensors.o, problem.dtype, shapes.o);
  check("lse", tensors.lse, DType::f32, shapes.lse);
  if (tensors.sinks.present()) check_sinks(check, problem, "sinks", tensors.sinks);
  check_alibi(check, problem, tensors.alibi);
  check_bias(check, problem, tensors.bias);
  check_operands(check, problem, tensors.operands);
  if (tensors.max_scores.present()) check("max_scores", tensors.max_scores, DType::f32, shapes.lse);
  const NamedTensor outputs[] = {{"o", tensors.o}, {"lse", tensors.lse}, {"max_scores", tensors.max_scores}};
  check_outputs(check, outputs, inputs_of(tensors));
}

void check_tensors(const Problem& problem, const BackwardTensors& tensors) {
  const TensorCheck check("backward", problem.device);
  const Shapes shapes(problem);
  check_inputs(check, problem, shapes, tensors);
  check("o", tensors.o, problem.dtype, shapes.o);
  check("lse", tensors.lse, DType::f32, shapes.lse);
  check("grad_o", tensors.grad_o, problem.dtype, shapes.o);
  if (tensors.grad_lse.present()) check("grad_lse", tensors.grad_lse, DType::f32, shapes.lse);
  check("grad_q", tensors.grad_q, problem.dtype, shapes.q);
  const DType of_keys = has_float32_key_gradients(problem, tensors) ? DType::f32 : problem.dtype;
  check("grad_k", tensors.grad_k, of_keys, shapes.k);
  check("grad_v", tensors.grad_v, of_keys, shapes.v);
  if (tensors.sinks.present() || tensors.grad_sinks.present()) {
    check_sinks(check, problem, "sinks", tensors.sinks);
    check("grad_sinks", tensors.grad_sinks, tensors.sinks.dtype,
          {tensors.sinks.shape.begin(), tensors.sinks.shape.begin() + tensors.sinks.rank});
  }
  check_alibi(check, problem, tensors.alibi);
  check_bias(check, problem, tensors);
  check_operands(check, problem, tensors.operands);
  const NamedTensor outputs[] = {{"grad_q", tensors.grad_q},
                                 {"grad_k", tensors.grad_k},
                                 {"grad_v", tensors.grad_v},
                                 {"grad_sinks", tensors.grad_sinks},
                                 {"grad_bias", tensors.grad_bias}};
  check_outputs(check, outputs,
                inputs_of(tensors, NamedTensor{"o", tensors.o}, NamedTensor{"lse", tensors.lse},
                          NamedTensor{"grad_o", tensors.grad_o}, NamedTensor{"grad_lse", tensors.grad_lse}));
}

void check_tensors(const Problem& problem, const TangentTensors& tensors) {
  const TensorCheck check("forward_tangents", problem.device);
  const Shapes shapes(problem);
  check_inputs(check, problem, shapes, tensors);
  check("o", tensors.o, problem.dtype, shapes.o);
  check("lse", tensors.lse, DType::f32, shapes.lse);
  if (tensors.tangent_q.present()) check("tangent_q", tensors.tangent_q, problem.dtype, shapes.q);
  if (tensors.tangent_k.present()) check("tangent_k", tensors.tangent_k, problem.dtype, shapes.k);
  if (tensors.tangent_v.present()) check("tangent_v", tensors.tangent_v, problem.dtype, shapes.v);
  check("tangent_o", tensors.tangent_o, problem.dtype, shapes.o);
  check("tangent_lse", tensors.tangent_lse, DType::f32, shapes.lse);
  if (tensors.sinks.present()) check_sinks(check, problem, "sinks", tensors.sinks);
  check_alibi(check, problem, tensors.alibi);
  check_bias(check, problem, tensors.bias);
  check_operands(check, problem, tensors.operands);
  const NamedTensor outputs[] = {{"tangent_o", tensors.tangent_o}, {"tangent_lse", tensors.tangent_lse}};
  check_outputs(check, outputs,
                inputs_of(tensors, NamedTensor{"o", tensors.o}, NamedTensor{"lse", tensors.lse},
                          NamedTensor{"tangent_q", tensors.tangent_q}, NamedTensor{"tangent_k", tensors.tangent_k},
                          NamedTensor{"tangent_v", tensors.tangent_v}));
}

}  // namespace flashmask
