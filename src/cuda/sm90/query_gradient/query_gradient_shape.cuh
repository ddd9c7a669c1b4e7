// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/views/rows.h"
#include "cuda/views/tensors.h"
#include "flashmask/mask_shape.h"

namespace flashmask::cuda::sm90 {

struct QueryGradientArguments : RowArguments {
  BackwardStatistics statistics;
  void* grad_q;
  std::int64_t grad_q_batch, grad_q_row, grad_q_head;  // strides in elements
  int head_dim;
};

/// Stages: buffers of Q with the output's gradient, of K and of V. kSharesRegisters: grad_p reuses the registers of the
/// previous tile's grad_s, so its product is issued only when the product that reads grad_s is done.
template <class T, MaskForm kForm_, int kHeadDim_, int kColumns_, int kQueryStages_, int kKeyStages_, int kValueStages_,
          int kProducerRegisters_, int kConsumerRegisters_, bool kSharesRegisters_>
struct QueryGradientShape {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kHeadDim_, kValueDim = kHeadDim_, kGroups = 2, kRows = 64 * kGroups,
                       kColumns = kColumns_;
  static constexpr int kQueryStages = kQueryStages_, kKeyStages = kKeyStages_, kValueStages = kValueStages_,
                       kBitSlots = kHeadDim > 192 ? 1 : 4, kBuilderWarps = kBitSlots == 1 ? 1 : 2,
                       kMaskAtOnce = kForm == MaskForm::bits && kProducerRegisters_ < 72 ? 32 : 64;
  static constexpr bool kReadsOutputGradient = true, kSkipsHidden = false, kSharesRegisters = kSharesRegisters_;
  static constexpr int kConsumerWarps = 4 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kQueryBytes = kRows * (kHeadDim + kValueDim) * 2, kKeyBytes = kColumns * kHeadDim * 2,
                       kValueBytes = kColumns * kValueDim * 2;
};

}  // namespace flashmask::cuda::sm90
