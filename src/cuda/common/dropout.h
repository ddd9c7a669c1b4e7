#pragma once

#include <cstdint>

#include "flashmask/dropout.h"
#include "flashmask/problem.h"
#include "plan/dropout.h"

namespace flashmask::cuda {

/// What kernels are told of a call's dropout. Its decisions are those of flashmask/dropout.h.
struct DropoutArguments {
  static constexpr int kRounds = 10;

  std::uint32_t keys[kRounds][2];  // of Philox's rounds
  std::uint32_t offset;
  std::uint32_t addend;  // 65536 − threshold, twice: 16 bits that are kept carry when it is added
  std::uint32_t heads;   // query heads of a batch entry
  float scale;           // of what is kept
};

/// Whether a call drops anything: kernels for calls that do not draw no numbers.
inline bool has_dropout(const Problem& problem) { return dropout_threshold(problem.dropout) != 0; }

/// Of a call that has_dropout(); nobody reads those of others.
inline DropoutArguments dropout_arguments(const Problem& problem, const DropoutState& state) {
  DropoutArguments arguments{};
  for (int round = 0; round < DropoutArguments::kRounds; ++round) {
    arguments.keys[round][0] = static_cast<std::uint32_t>(state.seed) + round * 0x9E3779B9U;
    arguments.keys[round][1] = static_cast<std::uint32_t>(state.seed >> 32) + round * 0xBB67AE85U;
  }
  arguments.offset = static_cast<std::uint32_t>(state.offset);
  arguments.addend = (65536 - dropout_threshold(problem.dropout)) * 0x10001U;
  arguments.heads = static_cast<std::uint32_t>(problem.query_heads);
  arguments.scale = static_cast<float>(dropout_scale(problem.dropout));
  return arguments;
}

}  // namespace flashmask::cuda
