#include "dispatch/gather.h"

#include <algorithm>
#include <cstring>

#include "dispatch/plan_choice.h"

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

/// A tensor as what a token has of it: `width` bytes a head.
struct TokenRows {
  std::byte* data;
  std::int64_t batch, tokens, heads, width;
  std::int64_t batch_stride, token_stride, head_stride;  ///< in bytes

  /// (batch, token, head, value), or (batch, head, token) of lse.
  explicit TokenRows(const TensorView& tensor) : data(static_cast<std::byte*>(tensor.data)) {
    const auto element = static_cast<std::int64_t>(size_in_bytes(tensor.dtype));
    const std::size_t token_axis = tensor.rank == 3 ? 2 : 1;
    const std::size_t head_axis = tensor.rank == 3 ? 1 : 2;
    batch = tensor.shape[0];
    tokens = tensor.shape[token_axis];
    heads = tensor.shape[head_axis];
    width = tensor.rank == 3 ? element : tensor.shape[3] * element;
    batch_stride = tensor.strides[0] * element;
    token_stride = tensor.strides[token_axis] * element;
    head_stride = tensor.strides[head_axis] * element;
  }

  std::byte* at(std::int64_t entry, std::int64_t token) const {
    return data + entry * batch_stride + token * token_stride;
  }
};

/// Calls copy(batch entry, place in the new order, token) for all tokens, shared out over the executor. `order`
/// [batch of the mask, tokens].
template <class Copy>
void for_each_token(const TokenRows& rows, std::span<const std::int64_t> order, Executor& executor, const Copy& copy) {
  if (rows.batch == 0 || rows.tokens == 0) return;
  const std::int64_t blocks = (rows.tokens + kTokensPerTask - 1) / kTokensPerTask;
  const bool shared = std::ssize(order) == rows.tokens;
  executor.run(static_cast<int>(rows.batch * blocks), [&](int task) {
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

}  // namespace

std::size_t gathered_bytes(const Problem& p, Direction direction) {
  const auto bytes = [&](DType dtype, std::int64_t length, std::int64_t heads, std::int64_t dim) {
    return aligned(static_cast<std::size_t>(p.batch * length * heads * dim) * size_in_bytes(dtype));
  };
  const std::size_t once =
      bytes(p.dtype, p.query_length, p.query_heads, p.head_dim) + bytes(p.dtype, p.key_length, p.kv_heads, p.head_dim) +
      bytes(p.dtype, p.key_length, p.kv_heads, p.value_dim) +
      bytes(p.dtype, p.query_length, p.query_heads, p.value_dim) + bytes(DType::f32, p.query_length, p.query_heads, 1);
  return direction == Direction::forward ? once : 2 * once;
}

TensorView TokenGatherer::place(const TensorView& tensor) {
  TensorView placed = tensor;
  placed.data = memory_;
  memory_ += bytes_of(tensor);
  // Head after head, whatever the caller's layout: a tile's rows lie together.
  const auto& shape = tensor.shape;
  placed.strides = tensor.rank == 3
                       ? std::array<std::int64_t, 4>{shape[1] * shape[2], shape[2], 1, 0}
                       : std::array<std::int64_t, 4>{shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
  return placed;
}

TensorView TokenGatherer::gather(const TensorView& tensor, std::span<const std::int64_t> order) {
  if (!tensor.present()) return {};
  const TensorView gathered = place(tensor);
  const TokenRows from(tensor), to(gathered);
  for_each_token(from, order, executor_, [&](std::int64_t entry, std::int64_t i, std::int64_t token) {
    copy_heads(from, from.at(entry, token), to, to.at(entry, i));
  });
  return gathered;
}

void TokenGatherer::scatter(const TensorView& gathered, const TensorView& tensor,
                            std::span<const std::int64_t> order) const {
  const TokenRows from(gathered), to(tensor);
  for_each_token(from, order, executor_, [&](std::int64_t entry, std::int64_t i, std::int64_t token) {
    copy_heads(from, from.at(entry, i), to, to.at(entry, token));
  });
}

ForwardTensors TokenGatherer::gather(const ForwardTensors& t) {
  const std::span<const std::int64_t> rows(reordering_.rows), columns(reordering_.columns);
  return {gather(t.q, rows), gather(t.k, columns), gather(t.v, columns), place(t.o), place(t.lse)};
}

BackwardTensors TokenGatherer::gather(const BackwardTensors& t) {
  const std::span<const std::int64_t> rows(reordering_.rows), columns(reordering_.columns);
  return {.q = gather(t.q, rows),
          .k = gather(t.k, columns),
          .v = gather(t.v, columns),
          .o = gather(t.o, rows),
          .lse = gather(t.lse, rows),
          .grad_o = gather(t.grad_o, rows),
          .grad_lse = gather(t.grad_lse, rows),
          .grad_q = place(t.grad_q),
          .grad_k = place(t.grad_k),
          .grad_v = place(t.grad_v)};
}

void TokenGatherer::scatter(const ForwardTensors& gathered, const ForwardTensors& tensors) const {
  scatter(gathered.o, tensors.o, reordering_.rows);
  scatter(gathered.lse, tensors.lse, reordering_.rows);
}

void TokenGatherer::scatter(const BackwardTensors& gathered, const BackwardTensors& tensors) const {
  scatter(gathered.grad_q, tensors.grad_q, reordering_.rows);
  scatter(gathered.grad_k, tensors.grad_k, reordering_.columns);
  scatter(gathered.grad_v, tensors.grad_v, reordering_.columns);
}

}  // namespace flashmask
