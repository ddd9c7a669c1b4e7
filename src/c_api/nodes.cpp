// SPDX-License-Identifier: Apache-2.0
#include "flashmask/nodes.h"

#include "c_api/sized_struct.h"

using flashmask::c_api::guard;
using flashmask::c_api::require;

struct flashmask_nodes {
  flashmask::Nodes nodes;
};

flashmask_status flashmask_mask_nodes(const flashmask_mask* mask, flashmask_nodes** nodes) {
  return guard([&] {
    require(nodes, "nodes");
    *nodes = new flashmask_nodes{flashmask::nodes(require(mask, "mask").mask)};
  });
}

flashmask_status flashmask_nodes_get(const flashmask_nodes* nodes, flashmask_nodes_view* view) {
  return guard([&] {
    const flashmask::Nodes& found = require(nodes, "nodes").nodes;
    flashmask_nodes_view made{};
    made.count = std::ssize(found.begins);
    made.tokens = std::ssize(found.predecessors);
    made.begins = found.begins.data();
    made.ends = found.ends.data();
    made.parents = found.parents.data();
    made.levels = found.levels.data();
    made.predecessors = found.predecessors.data();
    flashmask::c_api::write_struct(made, view, "view");
  });
}

void flashmask_nodes_destroy(flashmask_nodes* nodes) { delete nodes; }
