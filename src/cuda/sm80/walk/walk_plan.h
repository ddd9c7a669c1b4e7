// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/sm80/walk/walk_arguments.h"
#include "plan/linear.h"

namespace flashmask::cuda::sm80 {

/// The stretches of a plan of linear attention, in memory of the host.
struct WalkPlan {
  std::vector<WalkStretch> stretches;
  std::vector<int> order, stretch_of_step;
  std::vector<WalkTree> trees;
  std::vector<std::int64_t> padding;
  int linked = 0, linked_trees = 0;  ///< how many come first in `order` and `trees`

  explicit WalkPlan(const LinearPlanContent& plan) {
    add_stretches(plan);
    for (WalkStretch& each : stretches) {
      each.slot = -1;
      if (each.parent >= 0 || each.has_successor) each.slot = linked++;
    }
    order.resize(stretches.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [this](int a, int b) {
      const WalkStretch &x = at(a), &y = at(b);
      return (x.slot < 0) != (y.slot < 0) ? y.slot < 0 : x.tokens > y.tokens;
    });
    const auto is_linked = [](const WalkTree& tree) { return tree.end - tree.begin > 1; };
    std::ranges::stable_partition(trees, is_linked);
    linked_trees = static_cast<int>(std::ranges::count_if(trees, is_linked));
    for (const Span& span : plan.padding)
      for (std::int64_t token = span.begin; token < span.end; ++token) padding.push_back(token);
  }

  int steps() const { return static_cast<int>(stretch_of_step.size()); }

 private:
  WalkStretch& at(int number) { return stretches[static_cast<std::size_t>(number)]; }

  void add_stretches(const LinearPlanContent& plan) {
    const Nodes& nodes = plan.nodes;
    const std::int64_t length = plan.problem.length;
    constexpr std::int64_t kTokens = kWalkTokens * kWalkSteps;
    std::vector<int> last_of(nodes.begins.size());  // a node's last stretch
    int root = -1;
    for (std::size_t node = 0; node < nodes.begins.size(); ++node) {
      const std::int64_t parent = nodes.parents[node];
      int before = parent < 0 ? -1 : last_of[static_cast<std::size_t>(parent)];
      const int first = static_cast<int>(stretches.size());
      if (parent < 0) {
        ++root;
        trees.push_back({first, first});
      }
      for (std::int64_t token = nodes.begins[node]; token < nodes.ends[node]; token += kTokens) {
        const auto number = static_cast<int>(stretches.size());
        WalkStretch stretch{};
        stretch.batch = static_cast<int>(token / length);
        stretch.row = static_cast<int>(token % length);
        stretch.tokens = static_cast<int>(std::min(nodes.ends[node] - token, kTokens));
        stretch.first_step = steps();
        stretch.parent = before;
        stretch.root = root;
        stretch.node = token + kTokens < nodes.ends[node] ? -1 : static_cast<int>(node);
        stretch_of_step.resize(stretch_of_step.size() + static_cast<std::size_t>(stretch.steps()), number);
        stretches.push_back(stretch);
        if (before >= 0) at(before).has_successor = true;
        before = number;
      }
      last_of[node] = before;
      trees.back().end = static_cast<int>(stretches.size());
    }
    std::vector<bool> has_child(stretches.size());
    for (auto number = std::ssize(stretches) - 1; number >= 0; --number) {
      WalkStretch& own = at(static_cast<int>(number));
      if (own.parent < 0) continue;
      own.gives_first = !has_child[static_cast<std::size_t>(own.parent)];
      has_child[static_cast<std::size_t>(own.parent)] = true;
    }
  }
};

}  // namespace flashmask::cuda::sm80
