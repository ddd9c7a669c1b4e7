// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "flashmask/dropout.h"
#include "flashmask/executor.h"
#include "flashmask/export.h"
#include "flashmask/kernels.h"
#include "flashmask/mask.h"
#include "flashmask/problem.h"
#include "flashmask/schedule.h"
#include "flashmask/tensor.h"

namespace flashmask {

struct DevicePlan;
struct Reordering;

/// Which tiles a kernel takes that has small ones beside its own (docs/kernels/sm90.md).
enum class TileSize : std::uint8_t {
  automatic,  ///< those that take less time under the plan's mask
  large,
  small,
};

struct PlanOptions {
  Visit visit = Visit::active;
  /// The lowered form to take; nothing: intervals where they are exact, else bits.
  std::optional<MaskForm> form = {};
  /// A prefix or whole kernel name; empty: FLASHMASK_KERNEL, else the best that fits.
  std::string kernel = {};
  /// Take the tokens in another order where that saves tiles; callers see their own. Not together with dropout.
  bool reorder = false;
  /// Gradients that are the same bits on every run. Kernels of a CPU always give them; a GPU's take more time for it.
  bool deterministic = false;
  /// Of slices of a mask, those of the whole, which tile_sizes() says: then results are the same bits.
  TileSize forward_tiles = TileSize::automatic;
  TileSize backward_tiles = TileSize::automatic;
  /// Of the backward, where nobody reads the gradient of q, or those of k and v: kernels that can leave that work out,
  /// and the tensors are given all the same, to hold anything afterwards. What is computed has the bits that it had.
  bool skip_query_gradient = false;
  bool skip_key_gradients = false;
};

/// Everything decided before data arrives: the lowered mask, one schedule a direction, the kernels. Built once and
/// shared by all layers, forward and backward, from any number of threads. One that was moved from throws
/// Status::invalid_argument wherever it is used.
class FLASHMASK_API Plan {
 public:
  const Problem& problem() const { return problem_; }
  /// In the order that the kernels see. This and schedule() throw where the plan is on a GPU.
  const LoweredMask& mask() const;
  Visit visit() const { return visit_; }
  const TileSchedule& schedule(Direction direction) const;
  const KernelInfo& kernel(Direction direction) const;
  /// What became of PlanOptions::reorder; nullptr where it was not asked for.
  const Reordering* reordering() const { return reordering_.get(); }

  /// Bytes that forward() or backward() needs beside its tensors when `workers` threads run it. No more workers count
  /// than there are tiles to share out.
  std::size_t workspace_bytes(Direction direction, int workers) const;

 private:
  friend FLASHMASK_API Plan plan(const Mask&, const Problem&, const PlanOptions&, Executor&);
  struct Choice;

  Plan() = default;
  void refuse_moved_from() const;
  const Choice& choice(Direction direction) const;

  Problem problem_;
  Visit visit_ = Visit::active;
  std::shared_ptr<const LoweredMask> mask_;
  std::shared_ptr<const DevicePlan> device_;
  std::shared_ptr<const Reordering> reordering_;
  std::shared_ptr<const Choice> forward_, backward_;

  friend struct PlanAccess;
};

/// lower + classify + choose kernels. Throws when the mask does not fit the problem or no kernel serves it.
FLASHMASK_API Plan plan(const Mask& mask, const Problem& problem, const PlanOptions& options = {},
                        Executor& executor = default_executor());

/// Outputs have memory of their own, for each element: Status::invalid_argument names one that overlaps an input,
/// another output or itself. Inputs may overlap, and q, k and v be views of one packed tensor.
/// What nobody sees must be finite too, padding among it: kernels compute whole tiles, and 0 times NaN or infinity is
/// NaN. One in keys or values reaches o in rows that do not see it and share its tile.
struct ForwardTensors {
  TensorView q, k, v;  ///< in
  TensorView o, lse;   ///< out; every element is written
  /// In; may be absent. A logit of each query head (query_heads), or of each of its rows (batch, query_heads,
  /// query_length), that takes probability as the score of a key would, and has no value: e^sink is added to the sum
  /// that o is divided by and of which lse is the logarithm. float32 or the problem's dtype.
  TensorView sinks = {};
};

/// The rules of ForwardTensors hold here too. A NaN or an infinity in q or grad_o of rows that see nothing reaches the
/// gradients of keys that share its tile.
struct BackwardTensors {
  TensorView q, k, v, o, lse, grad_o;  ///< in
  TensorView grad_lse = {};            ///< in, shape and dtype of lse; may be absent
  /// Out; every element is written. Beside bfloat16 and float16 tensors grad_k and grad_v, both of them, may be
  /// float32: the sums as the kernel has them, to be added to others and rounded once. Not of a plan that reorders.
  TensorView grad_q, grad_k, grad_v;
  /// In and out, of the shape and dtype of the forward's sinks: where their gradient is wanted. The other gradients
  /// need neither, as o and lse hold what the sinks did.
  TensorView sinks = {}, grad_sinks = {};
};

/// Where a call runs and the memory it may use.
struct Execution {
  Executor* executor = nullptr;  ///< nullptr: default_executor()
  void* workspace = nullptr;     ///< nullptr: allocated for the call; on a GPU it is always the caller's, and there
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;     ///< of a call on a GPU, a cudaStream_t; nullptr: its default stream
  DropoutState dropout = {};  ///< of a problem with dropout; the backward takes that of its forward
  /// Of a call on a GPU, in place of `dropout`: where seed and offset (below 2^32) lie on the device. Kernels read them
  /// when they run, so that a captured graph takes, each time it is run, what lies there then.
  const std::uint64_t* dropout_on_device = nullptr;
  /// Of a problem with dropout that is a part of a larger one: a packed DropoutPlace, in memory of the plan's device.
  std::span<const std::int32_t> dropout_place = {};
};

/// Exact attention: o = softmax(scale · q kᵀ under the mask) v. Rows that see nothing get o = 0, lse = −inf, or
/// that of their sink.
/// Bitwise the same for any number of threads. On a GPU the call returns before the work is done.
FLASHMASK_API void forward(const Plan& plan, const ForwardTensors& tensors, const Execution& execution = {});

/// Gradients of q, k, v, with a gradient through lse when it is given. Bitwise the same for any number of threads; on a
/// GPU bitwise the same on every run where the plan is deterministic.
FLASHMASK_API void backward(const Plan& plan, const BackwardTensors& tensors, const Execution& execution = {});

}  // namespace flashmask
