// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "flashmask/export.h"
#include "flashmask/mask.h"

namespace flashmask {

/// What a mask means for a layer with a state, such as a recurrence or a convolution over time: a tree, whose nodes are
/// runs of tokens that follow each other. A state passes along a node, ends with it, and where several nodes have one
/// parent it forks. Tokens of batch entry b are numbered from b × columns on. Nodes are in ascending order of their
/// first tokens, so that a parent stands before its children.
struct Nodes {
  std::vector<std::int64_t> begins, ends;  ///< [nodes]: the first token, and that after the last one
  std::vector<std::int64_t> parents;       ///< [nodes]: the node whose last token the first one follows; −1: a root
  std::vector<std::int64_t> levels;        ///< [nodes]: how many nodes lie above
  /// [batch × columns]: the token whose state a token continues; −1 at the begin of a root, and for padding, which is
  /// in no node.
  std::vector<std::int64_t> predecessors;

  friend bool operator==(const Nodes&, const Nodes&) = default;
};

/// Finds the nodes of a mask. They exist where what a token sees is itself and all that its predecessor sees: causal
/// masks, packed documents, shared prompts, trees. A token that no row sees is padding; it may see what a token before
/// it sees.
///
/// Throws Status::invalid_argument, naming the first column that does not fit, where a state would have to forget
/// single tokens (windows) or see later ones, where mask heads differ or there are none, and where rows and columns are
/// not the same tokens; Status::unsupported for masks that are held as bits or beside a block map.
FLASHMASK_API Nodes nodes(const Mask& mask);

}  // namespace flashmask
