// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashmask/mask.h"

namespace flashmask::cli {

/// How many times faster than unmasked FlashAttention a paper's own code runs; 0 where it does not say.
struct PublishedSpeedup {
  double plain = 0;
  double reordered = 0;
};

/// One mask of a published evaluation at one length.
struct PapersCase {
  std::string table = {};  ///< one of kPapersTables
  std::string mask = {};   ///< as the table names it
  std::string size = {};   ///< what the tokens come from, where they are no round number
  std::int64_t tokens = 0;
  std::int64_t head_dim = 64;
  bool causal = false;     ///< the unmasked run is causal
  double kept_blocks = 0;  ///< share of nonzero blocks, of a block map
  bool in_plot = true;     ///< one of a mask's lengths, drawn over them
  std::function<Mask()> build = {};
  PublishedSpeedup published = {};
};

inline const std::vector<std::string> kPapersTables = {"alpaca", "medusa", "longformer", "reordering", "block-sparse"};

/// The cases of the given tables up to a length, in the order of kPapersTables, each mask by ascending tokens.
std::vector<PapersCase> papers_cases(const std::vector<std::string>& tables, std::int64_t max_tokens);

}  // namespace flashmask::cli
