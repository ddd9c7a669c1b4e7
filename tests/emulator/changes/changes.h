// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/scores/score_change.cuh"

/// Changes of scores, with the texts that are generated for them: the emulator compiles what NVRTC compiles.
namespace flashmask::cuda {
namespace caps {
#include "emulator/changes/caps.inc"
}
namespace capped_alibi {
#include "emulator/changes/capped_alibi.inc"
}
namespace capped_bias {
#include "emulator/changes/capped_bias.inc"
}
namespace signed_distance {
#include "emulator/changes/signed_distance.inc"
}
namespace scaled_distance {
#include "emulator/changes/scaled_distance.inc"
}

/// A change, and the file of its text.
struct TwoCaps {
  using Change = caps::Change;
  static constexpr const char* kChange = "softcap(3) | multiply(-2) | softcap(5)";
  static constexpr const char* kFile = "caps.inc";
};
struct CappedAlibi {
  using Change = capped_alibi::Change;
  static constexpr const char* kChange = "alibi | softcap(2)";
  static constexpr const char* kFile = "capped_alibi.inc";
};
struct CappedBias {
  using Change = capped_bias::Change;
  static constexpr const char* kChange = "bias | softcap(2)";
  static constexpr const char* kFile = "capped_bias.inc";
};
struct ScaledDistance {
  using Change = scaled_distance::Change;
  static constexpr const char* kChange = "distance | multiply(0.5)";
  static constexpr const char* kFile = "scaled_distance.inc";
};
/// NaN in padding, whose scores are 0.
struct SignedDistance {
  using Change = signed_distance::Change;
  static constexpr const char* kChange = "function(add(add(score, distance), div(score, abs(score))))";
  static constexpr const char* kFile = "signed_distance.inc";
};

}  // namespace flashmask::cuda
