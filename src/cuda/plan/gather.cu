// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/runtime/device.h"
#include "cuda/runtime/status.h"
#include "plan/gather.h"
#include "plan/plan_choice.h"
#include "plan/token_rows.h"

namespace flashmask {
namespace {

/// Token i of `to` is token order[i] of `from`; with `scatter`, token order[i] of `to` is token i of `from`.
struct TokenMove {
  TokenRows from, to;
  const std::int64_t* order;  // [batch of the mask, tokens]
  std::int64_t order_batch;   // stride: tokens, or 0 if batch entries share an order
  bool scatter;
  int units;  // per head of a token
};

/// Moves one unit per thread; units vary fastest, then heads, then tokens.
template <class Unit>
__global__ void move_units(TokenMove move, std::int64_t count) {
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const std::int64_t unit = at % move.units;
  at /= move.units;
  const std::int64_t head = at % move.from.heads;
  at /= move.from.heads;
  const std::int64_t place = at % move.from.tokens, entry = at / move.from.tokens;
  const std::int64_t token = move.order[entry * move.order_batch + place];
  const auto address = [&](const TokenRows& rows, std::int64_t own) {
    return reinterpret_cast<Unit*>(rows.data + entry * rows.batch_stride + own * rows.token_stride +
                                   head * rows.head_stride) +
           unit;
  };
  *address(move.to, move.scatter ? token : place) = *address(move.from, move.scatter ? place : token);
}

/// Whether a tensor consists of whole, aligned units of `unit` bytes.
bool divides(std::int64_t unit, const TokenRows& rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % static_cast<std::uintptr_t>(unit) == 0 &&
         rows.width % unit == 0 && rows.batch_stride % unit == 0 && rows.token_stride % unit == 0 &&
         rows.head_stride % unit == 0;
}

template <class Unit>
void launch(TokenMove move, cudaStream_t stream) {
  constexpr int kThreads = 256;
  move.units = static_cast<int>(move.from.width / static_cast<std::int64_t>(sizeof(Unit)));
  const std::int64_t count = move.from.batch * move.from.tokens * move.from.heads * move.units;
  if (count == 0) return;
  move_units<Unit><<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(move, count);
  cuda::check(cudaGetLastError(), "move_units");
}

class DeviceMover final : public TokenMover {
 public:
  DeviceMover(const Plan& plan, void* stream)
      : current_(plan.problem().device), plan_(plan), stream_(static_cast<cudaStream_t>(stream)) {}

  void gather(const TensorView& from, const TensorView& to, TokenSide side) const override {
    move(from, to, side, false);
  }
  void scatter(const TensorView& from, const TensorView& to, TokenSide side) const override {
    move(from, to, side, true);
  }

 private:
  void move(const TensorView& from, const TensorView& to, TokenSide side, bool scatter) const {
    const DevicePlan& on_device = PlanAccess::device(plan_);
    TokenMove move{TokenRows(from),
                   TokenRows(to),
                   side == TokenSide::rows ? on_device.row_order : on_device.column_order,
                   0,
                   scatter,
                   0};
    if (on_device.mask.shape.batch > 1) move.order_batch = move.from.tokens;
    if (divides(16, move.from) && divides(16, move.to)) {
      launch<uint4>(move, stream_);
    } else if (divides(4, move.from) && divides(4, move.to)) {
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
