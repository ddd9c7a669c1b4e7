// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "plan/gather.h"
#include "plan/plan_choice.h"
#include "plan/token_rows.h"

namespace flashmask {
namespace {

constexpr unsigned kThreads = 256;

/// Token order[i] of the caller's tensor is token i of the plan's; a negative one is padding, which is gathered as
/// zeros.
struct TokenMove {
  TokenRows callers, plans;
  const std::int64_t* order;  // [batch of the mask, tokens of the plan's tensor]
  std::int64_t order_batch;   // stride: tokens, or 0 if batch entries share an order
  bool scatter;               // to the caller's tensor, not from it
  unsigned heads, units;      // units: per head of a token
  unsigned threads;           // of a token
  unsigned head_blocks;       // per head: each takes kThreads / threads of its tokens
};

/// A block moves tokens of one head; blocks of a head are consecutive, and so are the heads of a batch entry.
template <class Unit>
__global__ void __launch_bounds__(kThreads) move_units(TokenMove move) {
  const unsigned list = blockIdx.x / move.head_blocks, block = blockIdx.x % move.head_blocks;
  const unsigned entry = list / move.heads, head = list % move.heads;
  const unsigned tokens = kThreads / move.threads, own = threadIdx.x / move.threads;
  const std::int64_t place = static_cast<std::int64_t>(block) * tokens + own;
  if (own >= tokens || place >= move.plans.tokens) return;
  const std::int64_t token = move.order[entry * move.order_batch + place];
  if (move.scatter && token < 0) return;
  const auto units_of = [&](const TokenRows& rows, std::int64_t at) {
    return reinterpret_cast<Unit*>(rows.data + entry * rows.batch_stride + at * rows.token_stride +
                                   head * rows.head_stride);
  };
  Unit* const to = move.scatter ? units_of(move.callers, token) : units_of(move.plans, place);
  const Unit* const from = move.scatter ? units_of(move.plans, place) : units_of(move.callers, max(token, 0L));
  for (unsigned unit = threadIdx.x % move.threads; unit < move.units; unit += move.threads)
    to[unit] = token < 0 ? Unit{} : from[unit];
}

/// Whether a tensor consists of whole, aligned units of `unit` bytes.
bool divides(std::int64_t unit, const TokenRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % static_cast<std::uintptr_t>(unit) == 0 &&
         rows.width % unit == 0 && rows.batch_stride % unit == 0 && rows.token_stride % unit == 0 &&
         rows.head_stride % unit == 0;
}

template <class Unit>
void launch(TokenMove move, cudaStream_t stream) {
  const TokenRows& rows = move.plans;
  if (rows.batch * rows.tokens * rows.heads * rows.width == 0) return;
  move.heads = static_cast<unsigned>(rows.heads);
  move.units = static_cast<unsigned>(rows.width / static_cast<std::int64_t>(sizeof(Unit)));
  move.threads = std::min(move.units, kThreads);
  const std::int64_t tokens = kThreads / move.threads;
  move.head_blocks = static_cast<unsigned>((rows.tokens + tokens - 1) / tokens);
  move_units<Unit><<<static_cast<unsigned>(rows.batch) * move.heads * move.head_blocks, kThreads, 0, stream>>>(move);
  cuda::check(cudaGetLastError(), "move_units");
}

class DeviceMover final : public TokenMover {
 public:
  DeviceMover(const Plan& plan, void* stream)
      : current_(plan.problem().device), plan_(plan), stream_(static_cast<cudaStream_t>(stream)) {}

  void gather(const TensorView& from, const TensorView& to, TokenSide side) const override {
    move({.callers = TokenRows(from), .plans = TokenRows(to), .scatter = false}, side);
  }
  void scatter(const TensorView& from, const TensorView& to, TokenSide side) const override {
    move({.callers = TokenRows(to), .plans = TokenRows(from), .scatter = true}, side);
  }

 private:
  void move(TokenMove move, TokenSide side) const {
    const DevicePlan& on_device = PlanAccess::device(plan_);
    move.order = side == TokenSide::rows ? on_device.row_order : on_device.column_order;
    move.order_batch = on_device.mask.shape.batch > 1 ? move.plans.tokens : 0;
    if (divides(16, move.callers) && divides(16, move.plans)) {
      launch<uint4>(move, stream_);
    } else if (divides(4, move.callers) && divides(4, move.plans)) {
      launch<std::uint32_t>(move, stream_);
    } else {
      launch<std::uint16_t>(move, stream_);
    }
  }

  cuda::CurrentDevice current_;
  const Plan& plan_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<const TokenMover> device_mover(const Plan& plan, void* stream) {
  return std::make_unique<DeviceMover>(plan, stream);
}

}  // namespace flashmask
