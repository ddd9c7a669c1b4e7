// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/scores/changes.h"
#include "cuda/sm90/masks/bias_map.h"
#include "cuda/views/change.h"
#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"
#include "flashmask/mask_shape.h"

namespace flashmask::cuda::sm90 {

struct ForwardArguments : RowArguments {
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int value_dim;
  SoftcapArguments softcap;  // for kernels that cap scores
  MaxScoresView max_scores;  // for kernels that keep them
  ChangeOperands change;     // for kernels that are compiled with a change
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
  static constexpr bool kCapsByPolynomial = Shape::kHeadDim == 256 && Shape::kForm == MaskForm::intervals &&
                                            std::is_same_v<typename Shape::Element, __nv_bfloat16>;
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  /// Panels of a bias, and what makes room for them: at 128 dims one buffer of Q instead of two.
  static constexpr int kBiasSlots = !AddsBias<Instance<Shape>> ? 0
                                    : Shape::kHeadDim == 128   ? 3
                                    : Shape::kHeadDim == 256   ? 1
                                                               : 0;
  static constexpr int kQueryStages = kBiasSlots > 0 ? 1 : Shape::kQueryStages,
                       kBuilderWarps = kBiasSlots > 0 ? 1 : Shape::kBuilderWarps;
  static constexpr int kMaskAtOnce = kProducerRegisters >= 72         ? Shape::kMaskAtOnce
                                     : Shape::kForm == MaskForm::bits ? 32
                                                                      : 64;
};

/// The shape of the same kernel that is compiled with a change of scores (cuda/compile): results are stored straight
/// from registers. kSettles: not every change leaves registers for settled maxima.
template <class Shape, bool kSettles_>
struct ForwardToChange : Shape {
  static constexpr bool kStagesResult = false, kSettles = kSettles_;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = Shape::kGroups == 3 ? 152 : 224;
  static constexpr int kMaskAtOnce = Shape::kForm == MaskForm::bits ? 32 : 64;
};

/// The shape of the same kernel that also keeps the largest scores: it must look at all of them.
template <class Shape>
struct MaximizingForward : Maximizing<Shape> {
  static constexpr bool kSettles = false;
};

// The larger tiles of each head dim, and their instances that drop or change scores. Ping-pong pays where exponentials
// take as long as products. The numbers of registers are what ptxas needs to avoid spills, builders included.

template <class T, MaskForm kForm>
using Forward64 = ForwardShape<T, kForm, 64, 64, 3, 96, 72, 144, TileOrder::ping_pong>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance64 =
    ForwardInstance<Instance, Forward64<T, kForm>, kWritesBiases<Instance<Forward64<T, kForm>>> ? 56 : 72,
                    kWritesBiases<Instance<Forward64<T, kForm>>> ? 152 : 144>;

template <class T, MaskForm kForm>
using Forward128 = ForwardShape<T, kForm, 128, 128, 2, 128, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance128 = ForwardInstance<Instance, Forward128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192v128 = ForwardShape<T, kForm, 192, 128, 2, 128, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance192v128 = ForwardInstance<Instance, Forward192v128<T, kForm>, 56, 224>;

template <class T, MaskForm kForm>
using Forward192 = ForwardShape<T, kForm, 192, 192, 2, 96, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance192 = ForwardInstance<Instance, Forward192<T, kForm>, 72, 216>;

template <class T, MaskForm kForm>
using Forward256 = ForwardShape<T, kForm, 256, 256, 2, 64, 72, 216>;
template <template <class> class Instance, class T, MaskForm kForm>
using ForwardInstance256 = ForwardInstance<Instance, Forward256<T, kForm>, 56, 224>;

/// Smaller tiles, for short rows.
template <class T, MaskForm kForm>
using ShortForward64 = ForwardShape<T, kForm, 64, 64, 1, 64, 72, 184, TileOrder::one_by_one>;
template <class T, MaskForm kForm>
using ShortForward128 = ForwardShape<T, kForm, 128, 128, 2, 64, 72, 216, TileOrder::one_by_one, 4>;

/// What the copy engine reads, and o, which it stores, also one row at a time.
struct ForwardMaps {
  CUtensorMap q, k, v, o, o_row;
  BiasMap bias;
};

/// Launches a shape's kernel. Those of plain scores are compiled in forward.cu, the instances in forward_dropping.cu,
/// forward_capping.cu, forward_biasing.cu, forward_adding.cu and forward_maximizing.cu.
template <class Shape>
void launch_forward(const ForwardArguments& arguments, const ForwardMaps& maps, int blocks, cudaStream_t stream);

}  // namespace flashmask::cuda::sm90
