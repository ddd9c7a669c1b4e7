#pragma once

#include "cuda/sm90/row_arguments.h"

namespace flashmask::cuda::sm90 {

struct ForwardArguments : RowArguments {
  void* o;
  float* lse;
  std::int64_t o_batch, o_row, o_head, lse_batch, lse_head;  // strides in elements
  int value_dim;
};

template <class T, MaskForm kForm_, int kHeadDim_, int kValueDim_, int kGroups_, int kColumns_, int kProducerRegisters_,
          int kConsumerRegisters_, bool kTakesTurns_ = false>
struct ForwardShape {
  using Element = T;
  static constexpr MaskForm kForm = kForm_;
  static constexpr int kHeadDim = kHeadDim_, kValueDim = kValueDim_, kGroups = kGroups_, kRows = 64 * kGroups,
                       kColumns = kColumns_;
  static constexpr int kQueryStages = kHeadDim > 128 ? 1 : 2, kKeyStages = 2, kValueStages = 2, kBuilderWarps = 2,
                       kBitSlots = 4, kMaskAtOnce = kColumns;
  static constexpr bool kTakesTurns = kTakesTurns_, kReadsOutputGradient = false;
  /// Rows of the result leave through the buffer of Q, which then waits for them: where there is another one.
  static constexpr bool kStagesResult = kQueryStages > 1;
  static constexpr int kBlocks = kGroups == 1 ? 2 : 1;  // on a multiprocessor
  static constexpr int kConsumerWarps = 4 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_, kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kQueryBytes = kRows * kHeadDim * 2, kKeyBytes = kColumns * kHeadDim * 2,
                       kValueBytes = kColumns * kValueDim * 2;
};

}  // namespace flashmask::cuda::sm90
