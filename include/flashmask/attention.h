// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "flashmask/compiled_kernels.h"
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
struct Places;
struct Reordering;

/// Which tiles a kernel uses if it has small ones beside its own (docs/kernels/sm90.md).
enum class TileSize : std::uint8_t {
  automatic,  ///< whichever take less time under the plan's mask
  large,
  small,
};

struct PlanOptions {
  Visit visit = Visit::active;
  /// The lowered form to use; nullopt: intervals where they are exact, else bits.
  std::optional<MaskForm> form = {};
  /// A prefix or whole kernel name; empty: FLASHMASK_KERNEL, else the best that fits.
  std::string kernel = {};
  /// Whether to reorder tokens where that saves work; callers still see their own order. Not together with dropout.
  bool reorder = false;
  /// Whether gradients must be bit-identical on every run. On a CPU they always are; GPU kernels take longer for it.
  bool deterministic = false;
  /// Whether o, lse and the gradients of q, k and v of a document are the bits that it has alone, whatever it is packed
  /// with and wherever it lies: tiles begin at every free cut of the mask, which no row sees a column across, and no
  /// choice depends on the whole call. What a document does not see must be finite, and so must its products. With
  /// dropout, documents begin at multiples of 8. Not together with `reorder` or a block map beside intervals, nor for
  /// the gradient of sinks, a sum over the call. On a GPU dropout and ALiBi are refused, and some kernels gather tokens
  /// into padded documents in each call, which float32 gradients of k and v and sinks of rows are refused beside.
  bool invariant = false;
  /// When planning a slice of a mask, pass the sizes that tile_sizes() gives for the whole mask; results are then
  /// bit-identical.
  TileSize forward_tiles = TileSize::automatic;
  TileSize backward_tiles = TileSize::automatic;
  /// For the backward: the gradient of q, or the gradients of k and v, are never read, and kernels that can skip that
  /// work. The tensors must still be given and may hold anything afterwards; the other gradients keep their bits.
  bool skip_query_gradient = false;
  bool skip_key_gradients = false;
  /// Kernels that are compiled for a change of scores are compiled when the plan is made, for tensors as changes
  /// usually read them: dense, float32, a bias in the dtype of q. Or in the first forward, for its tensors, as also
  /// happens where these are others.
  bool compile_when_called = false;
  /// Kernels of the backward are compiled beside those of the forward; or in the first backward, where it is not known
  /// that there will be one.
  bool compile_backward_later = false;
};

/// Everything decided before data arrives: the lowered mask, one schedule per direction, the kernels. Built once and
/// shared by all layers, forward and backward, from any number of threads. A moved-from plan throws
/// Status::invalid_argument when it is used.
class FLASHMASK_API Plan {
 public:
  const Problem& problem() const { return problem_; }
  /// The mask in the order that the kernels see; of an invariant plan, with the empty rows and columns that fill tiles.
  /// mask() and schedule() throw where the plan is on a GPU.
  const LoweredMask& mask() const;
  Visit visit() const { return visit_; }
  const TileSchedule& schedule(Direction direction) const;
  const KernelInfo& kernel(Direction direction) const;
  /// The kernels of a direction that were compiled for the problem's change of scores while the plan was made.
  std::span<const CompiledKernel> compiled_kernels(Direction direction) const;
  /// The outcome of PlanOptions::reorder; nullptr where it was not requested.
  const Reordering* reordering() const { return reordering_.get(); }

  /// Bytes that forward() or backward() needs besides its tensors when `workers` threads run it. Workers beyond the
  /// number of tiles to share out add nothing.
  std::size_t workspace_bytes(Direction direction, int workers) const;

 private:
  friend FLASHMASK_API Plan plan(const Mask&, const Problem&, const PlanOptions&, Executor&);
  struct Choice;

  Plan() = default;
  void refuse_moved_from() const;
  /// Moves mask_ to places, in units that are whole tiles of both kernels.
  void place(TileShape forward, TileShape backward, Executor& executor);
  const Choice& choice(Direction direction) const;

  Problem problem_;
  Visit visit_ = Visit::active;
  std::shared_ptr<const LoweredMask> mask_;
  std::shared_ptr<const Places> places_;
  std::shared_ptr<const DevicePlan> device_;
  std::shared_ptr<const Reordering> reordering_;
  std::shared_ptr<const Choice> forward_, backward_;

  friend struct PlanAccess;
};

/// Lowers the mask, classifies its tiles and chooses kernels. Throws when the mask does not fit the problem or no
/// kernel serves it.
FLASHMASK_API Plan plan(const Mask& mask, const Problem& problem, const PlanOptions& options = {},
                        Executor& executor = default_executor());

/// What a problem with ScoreBias::alibi is given: the score of row i and column j loses slope · |position of i −
/// position of j|. All are float32, contiguous in their last dimension.
struct AlibiTensors {
  TensorView slopes = {};  ///< (query_heads) or (batch, query_heads)
  /// (1 or batch, query_length) and (1 or batch, key_length): whole numbers between −2^24 and 2^24, beyond which
  /// float32 does not hold every one. Others are refused on a CPU; on a GPU, where looking would mean waiting, they
  /// give wrong results. Absent: row i has position i + key_length − query_length and column j has j, which is right
  /// for packed documents whose rows and columns are the same tokens, too.
  TensorView query_positions = {}, key_positions = {};
};

/// What a problem with ScoreBias::tensor or ::distances is given. Values are float32, bfloat16 or float16, contiguous
/// in their last dimension, and may be −infinity, which hides a score; +infinity and NaN are undefined. Values of
/// scores that the mask hides are not used, and may be anything.
struct BiasTensor {
  /// ScoreBias::tensor: (1 or batch, 1 or query_heads, 1 or query_length, key_length).
  /// ScoreBias::distances: (1 or batch, 1 or query_heads, 1 or query_length, entries). The score of row i and column j
  /// gets entry i + key_length − query_length − j + origin of its row; where there is none, it stays as it is.
  TensorView values = {};
  std::int64_t origin = 0;  ///< the entry of distance 0; for ScoreBias::distances, from −2^31 to 2^31
};

/// The operands of the change's function, in its order: as many dimensions as it reads with indices, float32, bfloat16
/// or float16, of any strides. The rest is absent.
using ScoreOperands = std::array<TensorView, ScoreFunction::kMaxOperands>;

/// Each element of an output has memory of its own: Status::invalid_argument names an output that overlaps an input,
/// another output or itself. Inputs may overlap; q, k and v may be views of one packed tensor.
/// Tokens that see nothing or are never seen, such as padding, must be finite too: kernels compute whole tiles, and 0
/// times NaN or infinity is NaN. A NaN or infinity in keys or values reaches o in rows that do not see it but share its
/// tile.
struct ForwardTensors {
  TensorView q, k, v;  ///< in
  TensorView o, lse;   ///< out; every element is written
  /// In; may be absent. One logit per query head (query_heads), or per row of each (batch, query_heads, query_length),
  /// that takes probability as the score of a key would, but has no value: e^sink is added to the sum that o is divided
  /// by and whose logarithm is lse. float32 or the problem's dtype.
  TensorView sinks = {};
  AlibiTensors alibi = {};  ///< in; given where the problem has this bias. Slopes and positions have no gradient
  BiasTensor bias = {};     ///< in; given where the problem has such a bias
  /// Out, with the shape and dtype of lse; absent where it is not wanted. The largest score that each row sees, scaled
  /// and changed as the problem says, without sinks and before dropout; −infinity where the row sees nothing. Hopper's
  /// kernels have it for problems without dropout and changes of scores.
  TensorView max_scores = {};
  ScoreOperands operands = {};  ///< in; of a function of scores. They have no gradient
};

/// The rules of ForwardTensors hold here too. A NaN or infinity in q or grad_o of rows that see nothing reaches the
/// gradients of keys that share a tile with them.
struct BackwardTensors {
  TensorView q, k, v, o, lse, grad_o;  ///< in
  TensorView grad_lse = {};            ///< in, shape and dtype of lse; may be absent
  /// Out; every element is written. For bfloat16 and float16 problems grad_k and grad_v may both be float32: the sums
  /// as the kernel holds them, to be added to others and rounded once. Not for a plan that reorders.
  TensorView grad_q, grad_k, grad_v;
  /// In and out, with the shape and dtype of the forward's sinks; given where the gradient of the sinks is wanted. The
  /// other gradients need neither, as o and lse already include the effect of the sinks.
  TensorView sinks = {}, grad_sinks = {};
  AlibiTensors alibi = {};  ///< in; those of the forward
  BiasTensor bias = {};     ///< in; that of the forward
  /// Out, with the shape and dtype of bias.values; absent where it is not wanted. Dimensions of 1 get sums over all
  /// that they stand for, in float32 and in one order, rounded once. Not for an invariant plan, as a sum over the call.
  TensorView grad_bias = {};
  ScoreOperands operands = {};  ///< in; those of the forward
};

/// Tangents are derivatives along one direction of all inputs at once: those of q, k and v go in, those of o and lse
/// come out. The rules of ForwardTensors hold here too.
struct TangentTensors {
  TensorView q, k, v, o, lse;  ///< in; o and lse are those of the forward
  /// In, with the shapes and dtype of q, k and v. An absent one stands for zeros, and takes no time.
  TensorView tangent_q = {}, tangent_k = {}, tangent_v = {};
  TensorView tangent_o, tangent_lse;  ///< out, with the shapes and dtypes of o and lse; every element is written
  /// In; those of the forward, where it had some. They have no tangents, nor have slopes, positions and biases.
  TensorView sinks = {};
  AlibiTensors alibi = {};
  BiasTensor bias = {};
  ScoreOperands operands = {};
};

/// Where a call runs and the memory it may use.
struct Execution {
  Executor* executor = nullptr;  ///< nullptr: default_executor()
  void* workspace = nullptr;     ///< nullptr: allocated for the call; on a GPU always the caller's, in GPU memory
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;     ///< a cudaStream_t, for a call on a GPU; nullptr: its default stream; none on the CPU
  DropoutState dropout = {};  ///< for a problem with dropout; the backward takes its forward's state
  /// For a call on a GPU, instead of `dropout`: points to seed and offset (below 2^32) on the device. Kernels read them
  /// when they run, so each replay of a captured graph uses the values that are there at that time.
  const std::uint64_t* dropout_on_device = nullptr;
  /// For a problem with dropout that is part of a larger one: a packed DropoutPlace, in memory of the plan's device.
  std::span<const std::int32_t> dropout_place = {};
};

/// Computes exact attention: o = softmax(scale · q kᵀ, capped and biased as the problem says, under the mask) v. Rows
/// that see nothing get o = 0 and lse = −inf, or lse = their sink. Bit-identical for any number of threads. On a GPU
/// the call returns before the work is done.
FLASHMASK_API void forward(const Plan& plan, const ForwardTensors& tensors, const Execution& execution = {});

/// Computes the gradients of q, k and v, including the gradient through lse where grad_lse is given. Bit-identical for
/// any number of threads; on a GPU, bit-identical on every run where the plan is deterministic.
FLASHMASK_API void backward(const Plan& plan, const BackwardTensors& tensors, const Execution& execution = {});

/// Computes the tangents of o and lse (docs/tangents.md): how they change where q, k and v change by their tangents.
/// For a problem with dropout it takes the forward's state. Bit-identical for any number of threads and on every
/// run. Refused, Status::unsupported: plans that reorder; on a GPU plans of other kernels than those of mma.sync for
/// heads of up to 128 dims (PlanOptions::kernel "sm8"), and invariant plans.
FLASHMASK_API void forward_tangents(const Plan& plan, const TangentTensors& tensors, const Execution& execution = {});

/// Bytes that forward_tangents() needs besides its tensors when `workers` threads run it.
FLASHMASK_API std::size_t tangents_workspace_bytes(const Plan& plan, int workers);

}  // namespace flashmask
