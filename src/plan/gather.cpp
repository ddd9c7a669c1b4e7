// SPDX-License-Identifier: Apache-2.0
#include "plan/gather.h"

#include <algorithm>
#include <cstring>

#include "base/bodies.h"
#include "plan/plan_choice.h"
#include "plan/token_rows.h"

namespace flashmask {
namespace {

constexpr std::int64_t kTokensPerTask = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

std::size_t bytes_of(const TensorView& tensor) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < tensor.rank; ++axis) elements *= tensor.shape[static_cast<std::size_t>(axis)];
  return aligned(static_cast<std::size_t>(elements) * size_in_bytes(tensor.dtype));
}

/// Calls copy(batch entry, place in the new order, token) for all tokens, shared out over the executor. `order` is
/// [batch of the mask, tokens].
template <class Copy>
void for_each_token(const TokenRows& rows, std::span<const std::int64_t> order, Executor& executor, const Copy& copy) {
  if (rows.batch == 0 || rows.tokens == 0) return;
  const std::int64_t blocks = (rows.tokens + kTokensPerTask - 1) / kTokensPerTask;
  const bool shared = std::ssize(order) == rows.tokens;
  run_bodies(executor, static_cast<int>(rows.batch * blocks), [&](int task) {
    const std::int64_t entry = task / blocks;
    const std::int64_t begin = task % blocks * kTokensPerTask;
    const std::int64_t* const token = order.data() + (shared ? 0 : entry * rows.tokens);
    for (std::int64_t i = begin; i < std::min(begin + kTokensPerTask, rows.tokens); ++i) copy(entry, i, token[i]);
  });
}

void copy_heads(const TokenRows& from, const std::byte* source, const TokenRows& to, std::byte* target) {
  for (std::int64_t head = 0; head < from.heads; ++head)
    std::memcpy(target + head * to.head_stride, source + head * from.head_stride, static_cast<std::size_t>(from.width));
}

class HostMover final : public TokenMover {
 public:
  HostMover(const Reordering& reordering, Executor& executor) : reordering_(reordering), executor_(executor) {}

  void gather(const TensorView& from, const TensorView& to, TokenSide side) const override {
    const TokenRows source(from), target(to);
    for_each_token(source, order(side), executor_, [&](std::int64_t entry, std::int64_t i, std::int64_t token) {
      copy_heads(source, source.at(entry, token), target, target.at(entry, i));
    });
  }

  void scatter(const TensorView& from, const TensorView& to, TokenSide side) const override {
    const TokenRows source(from), target(to);
    for_each_token(source, order(side), executor_, [&](std::int64_t entry, std::int64_t i, std::int64_t token) {
      copy_heads(source, source.at(entry, i), target, target.at(entry, token));
    });
  }

 private:
  std::span<const std::int64_t> order(TokenSide side) const {
    return side == TokenSide::rows ? reordering_.rows : reordering_.columns;
  }

  const Reordering& reordering_;
  Executor& executor_;
};

}  // namespace

std::unique_ptr<const TokenMover> host_mover(const Reordering& reordering, Executor& executor) {
  return std::make_unique<HostMover>(reordering, executor);
}

std::size_t gathered_bytes(const Problem& p, Direction direction) {
  const auto bytes = [&](DType dtype, std::int64_t length, std::int64_t heads, std::int64_t dim) {
    return aligned(static_cast<std::size_t>(p.batch * length * heads * dim) * size_in_bytes(dtype));
  };
  const std::size_t of_rows = bytes(DType::f32, p.query_length, p.query_heads, 1);  // lse, its gradient, max_scores
  const std::size_t once = bytes(p.dtype, p.query_length, p.query_heads, p.head_dim) +
                           bytes(p.dtype, p.key_length, p.kv_heads, p.head_dim) +
                           bytes(p.dtype, p.key_length, p.kv_heads, p.value_dim) +
                           bytes(p.dtype, p.query_length, p.query_heads, p.value_dim) + of_rows;
  return direction == Direction::forward ? once + of_rows : 2 * once;
}

TensorView TokenGatherer::allocate(const TensorView& tensor, TokenSide side) {
  TensorView gathered = tensor;
  gathered.shape[tensor.rank == 3 ? 2 : 1] = side == TokenSide::rows ? rows_ : columns_;
  gathered.data = memory_;
  memory_ += bytes_of(gathered);
  // Head after head, whatever the caller's layout, so that a tile's rows lie together.
  const auto& shape = gathered.shape;
  gathered.strides =
      tensor.rank == 3 ? std::array<std::int64_t, 4>{shape[1] * shape[2], shape[2], 1, 0}
                       : std::array<std::int64_t, 4>{shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  return gathered;
}

TensorView TokenGatherer::gather(const TensorView& tensor, TokenSide side) {
  if (!tensor.present()) return {};
  const TensorView gathered = allocate(tensor, side);
  mover_.gather(tensor, gathered, side);
  return gathered;
}

ForwardTensors TokenGatherer::gather(const ForwardTensors& t) {
  return {gather(t.q, TokenSide::rows),
          gather(t.k, TokenSide::columns),
          gather(t.v, TokenSide::columns),
          allocate(t.o, TokenSide::rows),
          allocate(t.lse, TokenSide::rows),
          t.sinks,
          {},
          {},
          t.max_scores.present() ? allocate(t.max_scores, TokenSide::rows) : TensorView()};
}

BackwardTensors TokenGatherer::gather(const BackwardTensors& t) {
  return {.q = gather(t.q, TokenSide::rows),
          .k = gather(t.k, TokenSide::columns),
          .v = gather(t.v, TokenSide::columns),
          .o = gather(t.o, TokenSide::rows),
          .lse = gather(t.lse, TokenSide::rows),
          .grad_o = gather(t.grad_o, TokenSide::rows),
          .grad_lse = gather(t.grad_lse, TokenSide::rows),
          .grad_q = allocate(t.grad_q, TokenSide::rows),
          .grad_k = allocate(t.grad_k, TokenSide::columns),
          .grad_v = allocate(t.grad_v, TokenSide::columns),
          .sinks = t.sinks,
          .grad_sinks = t.grad_sinks};
}

void TokenGatherer::scatter(const ForwardTensors& gathered, const ForwardTensors& tensors) const {
  mover_.scatter(gathered.o, tensors.o, TokenSide::rows);
  mover_.scatter(gathered.lse, tensors.lse, TokenSide::rows);
  if (tensors.max_scores.present()) mover_.scatter(gathered.max_scores, tensors.max_scores, TokenSide::rows);
}

void TokenGatherer::scatter(const BackwardTensors& gathered, const BackwardTensors& tensors) const {
  mover_.scatter(gathered.grad_q, tensors.grad_q, TokenSide::rows);
  mover_.scatter(gathered.grad_k, tensors.grad_k, TokenSide::columns);
  mover_.scatter(gathered.grad_v, tensors.grad_v, TokenSide::columns);
}

}  // namespace flashmask
