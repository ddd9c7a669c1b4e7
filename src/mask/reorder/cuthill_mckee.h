#pragma once

#include <cstdint>
#include <vector>

#include "mask/reorder/graph.h"

namespace flashmask {

/// The nodes of an undirected graph in the order of Cuthill and McKee (1969), reversed: breadth first, a node's
/// neighbours by ascending degree, from a node at an end of its component (George and Liu 1979). Components one after
/// another; nodes without neighbours come last.
std::vector<std::uint32_t> reverse_cuthill_mckee(const Graph& graph);

}  // namespace flashmask
