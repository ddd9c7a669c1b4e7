// SPDX-License-Identifier: Apache-2.0
#include "kit/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kit/rounding.h"

namespace flashmask::check {
namespace {

HostTensor queries(const Problem& p, std::int64_t dim) {
  return {p.dtype, {p.batch, p.query_length, p.query_heads, dim}};
}

HostTensor keys(const Problem& p, std::int64_t dim) { return {p.dtype, {p.batch, p.key_length, p.kv_heads, dim}}; }

HostTensor per_row(const Problem& p) { return {DType::f32, {p.batch, p.query_heads, p.query_length}}; }

std::optional<HostTensor> sinks_of(const Problem& p, Sinks which) {
  switch (which) {
    case Sinks::of_heads:
      return HostTensor(DType::f32, {p.query_heads});
    case Sinks::narrow_of_heads:
      return HostTensor(p.dtype, {p.query_heads});
    case Sinks::of_rows:
      return per_row(p);
    default:
      return std::nullopt;
  }
}

TensorView view_of(const std::optional<HostTensor>& tensor) { return tensor ? tensor->view() : TensorView{}; }

}  // namespace

HostTensor::HostTensor(DType dtype, const std::vector<std::int64_t>& shape) {
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    view_.shape[dim] = shape[dim];
    view_.strides[dim] = size_;
    size_ *= shape[dim];
  }
  bytes_ = static_cast<std::size_t>(size_) * size_in_bytes(dtype);
  memory_.reset(static_cast<std::byte*>(::operator new(bytes_, kAlignment)));
  view_.data = memory_.get();
  fill_nan();
}

void HostTensor::fill_nan() {
  constexpr std::byte kNan{0xFF};  // all bits set are a NaN in every dtype
  std::fill_n(memory_.get(), bytes_, kNan);
}

void HostTensor::fill_normal(RandomNumbers& random) {
  for (std::int64_t i = 0; i < size_; ++i) set(i, random.normal());
}

std::byte* HostTensor::element(std::int64_t index) const {
  return memory_.get() + static_cast<std::size_t>(index) * size_in_bytes(view_.dtype);
}

void HostTensor::set(std::int64_t index, float value) {
  std::byte* where = element(index);
  if (view_.dtype == DType::f32) {
    std::memcpy(where, &value, sizeof value);
  } else {
    const std::uint16_t word = view_.dtype == DType::bf16 ? to_bf16(value) : to_f16(value);
    std::memcpy(where, &word, sizeof word);
  }
}

float HostTensor::at(std::int64_t index) const {
  const std::byte* where = element(index);
  if (view_.dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, where, sizeof value);
    return value;
  }
  std::uint16_t word = 0;
  std::memcpy(&word, where, sizeof word);
  return view_.dtype == DType::bf16 ? from_bf16(word) : from_f16(word);
}

std::vector<double> HostTensor::values() const {
  std::vector<double> values(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) values[static_cast<std::size_t>(i)] = at(i);
  return values;
}

AttentionTensors::AttentionTensors(const Problem& p, std::uint64_t seed, Sinks which)
    : q(queries(p, p.head_dim)),
      k(keys(p, p.head_dim)),
      v(keys(p, p.value_dim)),
      o(queries(p, p.value_dim)),
      lse(per_row(p)),
      max_scores(per_row(p)),
      grad_o(queries(p, p.value_dim)),
      grad_lse(per_row(p)),
      grad_q(queries(p, p.head_dim)),
      grad_k(keys(p, p.head_dim)),
      grad_v(keys(p, p.value_dim)),
      sinks(sinks_of(p, which)),
      grad_sinks(sinks_of(p, which)) {
  RandomNumbers random(seed);
  for (HostTensor* input : {&q, &k, &v, &grad_o, &grad_lse}) input->fill_normal(random);
  if (sinks) sinks->fill_normal(random);
  if (p.change.bias() == ScoreBias::alibi) make_alibi(p);
  if (has_bias_tensor(p)) make_bias(p, random);
  if (p.change.function() != nullptr) make_operands(p, random);
}

void AttentionTensors::make_operands(const Problem& p, RandomNumbers& random) {
  for (int i = 0; i < p.change.function()->operands(); ++i) {
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < p.change.function()->rank(i); ++axis) shape.push_back(2 + 5 * axis + 3 * i);
    operands.emplace_back(i % 2 == 0 ? DType::f32 : p.dtype, shape);
    operands.back().fill_normal(random);
  }
}

ScoreOperands AttentionTensors::views_of_operands() const {
  ScoreOperands views;
  for (std::size_t i = 0; i < operands.size(); ++i) views[i] = operands[i].view();
  return views;
}

void AttentionTensors::make_bias(const Problem& p, RandomNumbers& random) {
  const bool shared = p.batch > 1, by_distance = p.change.bias() == ScoreBias::distances;
  std::vector<std::int64_t> shape{1, p.query_heads, p.query_length, p.key_length};
  if (by_distance) shape[3] = shared ? std::max<std::int64_t>(p.query_length + p.key_length, 1) : 48;
  if (by_distance && shared) shape[2] = 1;
  if (by_distance) bias_origin = shared ? p.key_length - 1 : 3;
  bias.emplace(shared ? p.dtype : DType::f32, shape);
  grad_bias.emplace(shared ? p.dtype : DType::f32, shape);
  bias->fill_normal(random);
  if (by_distance) return;
  for (std::int64_t i = 0; i < bias->size(); i += 11) bias->set(i, -std::numeric_limits<float>::infinity());
}

void AttentionTensors::make_alibi(const Problem& p) {
  const bool shared = p.batch == 1;
  alibi_slopes.emplace(DType::f32, shared ? std::vector{p.query_heads} : std::vector{p.batch, p.query_heads});
  for (std::int64_t i = 0; i < alibi_slopes->size(); ++i)
    alibi_slopes->set(i, (i % 3 == 1 ? -1 : 1) * 0.5F / static_cast<float>(1 << i % 7));
  if (shared) return;
  const auto positions = [&](std::int64_t length) {
    HostTensor made(DType::f32, {p.batch, length});
    for (std::int64_t i = 0; i < made.size(); ++i) made.set(i, static_cast<float>(i % length / 2 + i % 3 * 5));
    return made;
  };
  query_positions.emplace(positions(p.query_length));
  key_positions.emplace(positions(p.key_length));
}

void AttentionTensors::clear_outputs() {
  for (HostTensor* output : {&o, &lse, &max_scores, &grad_q, &grad_k, &grad_v}) output->fill_nan();
  if (grad_sinks) grad_sinks->fill_nan();
  if (grad_bias) grad_bias->fill_nan();
}

ForwardTensors AttentionTensors::forward() const {
  return {q.view(),   k.view(),           v.view(), o.view(),
          lse.view(), view_of(sinks),     alibi(),  {view_of(bias), bias_origin},
          {},         views_of_operands()};
}

BackwardTensors AttentionTensors::backward() const {
  return {q.view(),
          k.view(),
          v.view(),
          o.view(),
          lse.view(),
          grad_o.view(),
          grad_lse.view(),
          grad_q.view(),
          grad_k.view(),
          grad_v.view(),
          view_of(sinks),
          view_of(grad_sinks),
          alibi(),
          {view_of(bias), bias_origin},
          view_of(grad_bias),
          views_of_operands()};
}

AlibiNumbers::AlibiNumbers(const AttentionTensors& tensors) {
  if (tensors.alibi_slopes) slopes = tensors.alibi_slopes->values();
  if (tensors.query_positions) query_positions = tensors.query_positions->values();
  if (tensors.key_positions) key_positions = tensors.key_positions->values();
}

BiasNumbers::BiasNumbers(const AttentionTensors& tensors) {
  if (!tensors.bias) return;
  values = tensors.bias->values();
  shape = tensors.bias->view().shape;
}

OperandNumbers::OperandNumbers(const AttentionTensors& tensors) {
  for (const HostTensor& each : tensors.operands) values.push_back(each.values());
  for (std::size_t i = 0; i < values.size(); ++i) operands.push_back({values[i], tensors.operands[i].view().shape});
}

AlibiTensors AttentionTensors::alibi() const {
  return {view_of(alibi_slopes), view_of(query_positions), view_of(key_positions)};
}

}  // namespace flashmask::check
