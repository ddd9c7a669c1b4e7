// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/row_arguments.h"
#include "cuda/scores/changes.h"
#include "cuda/scores/softcap.h"
#include "cuda/sm90/changed_shapes.h"

namespace flashmask::cuda::sm90 {

struct ForwardArguments : RowArguments {
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int value_dim;
  SoftcapArguments softcap;  // for kernels that cap scores
};

/// How the tiles of a row tile follow each other. overlapping: one tile's products run during the next tile's softmax.
/// ping_pong: in addition, one warpgroup multiplies while another computes its softmax. one_by_one: a tile ends before
/// the next begins, which takes the least work and registers and is fastest where rows are short.
enum class TileOrder { overlapping, ping_pong, one_by_one };

/// kTileStages: buffers of K, and as many of V.
template <class T, MaskForm kForm_, int kHeadDim_, int kValueDim_, int kGroups_, int kColumns_, int kProducerRegisters_,
          int kConsumerRegisters_, TileOrder kOrder_ = TileOrder::overlapping, int kTileStages_ = 2>
struct ForwardShape {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kHeadDim_, kValueDim = kValueDim_, kGroups = kGroups_, kRows = 64 * kGroups,
                       kColumns = kColumns_;
  static constexpr int kQueryStages = kHeadDim > 128 ? 1 : 2, kKeyStages = kTileStages_, kValueStages = kTileStages_,
                       kBuilderWarps = 2, kBitSlots = 4, kMaskAtOnce = kColumns;
  static constexpr TileOrder kOrder = kOrder_;
  static constexpr bool kPingPongs = kOrder == TileOrder::ping_pong, kReadsOutputGradient = false;
  static constexpr bool kSettles = true;  // maxima are not computed in every tile
  /// A warpgroup skips a tile in which its own rows see nothing.
  static constexpr bool kSkipsHidden = kOrder == TileOrder::one_by_one && kGroups > 1;
  /// Rows of the result leave through the buffer of Q. It cannot be refilled until they have left, so this takes two
  /// buffers.
  static constexpr bool kStagesResult = kQueryStages > 1;
  static constexpr int kBlocks = kGroups == 1 ? 2 : 1;  // per multiprocessor
  static constexpr int kConsumerWarps = 4 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kKeyBytes = kColumns * kHeadDim * 2,
                       kValueBytes = kColumns * kValueDim * 2;
};

/// The shape of the same kernel for problems whose scores are dropped or changed, which takes registers: results are
/// stored straight from registers, and only at 128 dims are enough left to settle maxima. Instance: Dropping, Capping,
/// Biasing or Adding.
template <template <class> class Instance, class Shape, int kProducerRegisters_, int kConsumerRegisters_>
struct ForwardInstance : Instance<Shape> {
  static constexpr bool kStagesResult = false, kSettles = Shape::kHeadDim == 128;
  /// Whether registers suffice for two ways to cap a tile.
  static constexpr bool kCapsByPolynomial = Shape::kHeadDim == 256 && kIsCommon<Shape>;
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kMaskAtOnce = kProducerRegisters >= 72         ? Shape::kMaskAtOnce
                                     : Shape::kForm == MaskForm::bits ? 32
                                                                      : 64;
};

}  // namespace flashmask::cuda::sm90
