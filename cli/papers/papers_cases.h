// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashmask/mask.h"

namespace flashmask::cli {

/// How many times faster than unmasked FlashAttention a paper's own code runs; 0 where the paper does not say.
struct PublishedSpeedup {
  double plain = 0;
  double reordered = 0;
};

/// One mask of a published evaluation at one length.
struct PapersCase {
  std::string table = {};  ///< one of kPapersTables
  std::string mask = {};   ///< its name in the table
  std::string size = {};   ///< where the number of tokens comes from, if it is not a round number
  std::int64_t tokens = 0;
  std::int64_t head_dim = 64;
  bool causal = false;     ///< the unmasked run is causal
  double kept_blocks = 0;  ///< share of blocks that a block map keeps; 0 for other masks
  bool in_plot = true;     ///< this length is a point of the mask's line in the plot
  std::function<Mask()> build = {};
  PublishedSpeedup published = {};
};

inline const std::vector<std::string> kPapersTables = {"alpaca", "medusa", "longformer", "reordering", "block-sparse"};

/// The cases of the given tables up to a length, in the order of kPapersTables, each mask by ascending length.
std::vector<PapersCase> papers_cases(const std::vector<std::string>& tables, std::int64_t max_tokens);

}  // namespace flashmask::cli
