// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "cuda/sm90/walk/walk_arguments.h"
#include "plan/linear.h"

namespace flashmask::cuda::sm90 {

/// What each block visits, in memory of the host: whole trees of one head and slice, the longest first, each given to
/// the block that has the least to do. Which block walks a tree changes none of its bits.
struct WalkVisits {
  std::vector<WalkVisit> visits;
  std::vector<int> begins;  ///< [block + 1]
  int slots = 0;            ///< that a block needs, for states where trees fork
  std::vector<std::int64_t> padding;

  WalkVisits(const LinearPlanContent& plan, int slices, int most_blocks) {
    std::vector<std::vector<WalkVisit>> trees;
    for (const LinearTree& tree : plan.trees) trees.push_back(steps_of(plan, tree));
    deal(trees, static_cast<int>(plan.problem.heads) * slices, slices, most_blocks);
    for (const Span& span : plan.padding)
      for (std::int64_t token = span.begin; token < span.end; ++token) padding.push_back(token);
  }

  int blocks() const { return static_cast<int>(begins.size()) - 1; }

 private:
  /// Slots of a tree: a node that ends in a fork, or before a child that does not follow it, keeps its state until its
  /// last child has begun.
  class Slots {
   public:
    int take() {
      if (free_.empty()) return count_++;
      const int slot = free_.back();
      free_.pop_back();
      return slot;
    }
    void give_back(int slot) { free_.push_back(slot); }
    int count() const { return count_; }

   private:
    std::vector<int> free_;
    int count_ = 0;
  };

  /// Returns the steps of a tree, for head 0 and slice 0.
  std::vector<WalkVisit> steps_of(const LinearPlanContent& plan, const LinearTree& tree) {
    const Nodes& nodes = plan.nodes;
    const std::int64_t length = plan.problem.length;
    const auto begin = static_cast<std::size_t>(tree.first_node), end = begin + static_cast<std::size_t>(tree.nodes);
    // The last child of each node that does not go on from it at once.
    std::vector<std::size_t> last_child(end - begin, 0);
    for (std::size_t node = begin + 1; node < end; ++node) {
      const auto parent = static_cast<std::size_t>(nodes.parents[node]);
      if (parent + 1 != node) last_child[parent - begin] = node;
    }
    std::vector<int> slot_of(end - begin, -1);
    Slots own;
    std::vector<WalkVisit> steps;
    for (std::size_t node = begin; node < end; ++node) {
      int from = kFirstRoot - static_cast<int>(tree.root);
      if (node > begin) {
        const auto parent = static_cast<std::size_t>(nodes.parents[node]);
        from = parent + 1 == node ? kGoesOn : slot_of[parent - begin];
        if (last_child[parent - begin] == node) own.give_back(from);
      }
      for (std::int64_t token = nodes.begins[node]; token < nodes.ends[node]; token += kWalkTokens) {
        WalkVisit step{};
        step.batch = static_cast<int>(token / length);
        step.row = static_cast<int>(token % length);
        step.tokens = static_cast<int>(std::min<std::int64_t>(nodes.ends[node] - token, kWalkTokens));
        step.from = std::exchange(from, kGoesOn);
        step.keep = step.node = -1;
        steps.push_back(step);
      }
      steps.back().node = static_cast<int>(node);
      if (last_child[node - begin] != 0) steps.back().keep = slot_of[node - begin] = own.take();
    }
    slots = std::max(slots, own.count());
    return steps;
  }

  void deal(const std::vector<std::vector<WalkVisit>>& trees, int lines, int slices, int most_blocks) {
    using Unit = std::pair<int, int>;  // tree, and head × slices + slice
    const auto blocks = static_cast<std::size_t>(std::clamp<std::int64_t>(std::ssize(trees) * lines, 1, most_blocks));
    std::vector<std::vector<Unit>> units(blocks);
    using Load = std::pair<std::int64_t, std::size_t>;  // steps, block
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (std::size_t block = 0; block < blocks; ++block) loads.emplace(0, block);
    for (std::size_t tree = 0; tree < trees.size(); ++tree)
      for (int line = 0; line < lines; ++line) {
        const auto [steps, block] = loads.top();
        loads.pop();
        units[block].emplace_back(static_cast<int>(tree), line);
        loads.emplace(steps + std::ssize(trees[tree]), block);
      }
    for (const auto& of_block : units) {
      begins.push_back(static_cast<int>(visits.size()));
      for (const auto& [tree, line] : of_block)
        for (WalkVisit visit : trees[static_cast<std::size_t>(tree)]) {
          visit.head = line / slices;
          visit.slice = line % slices;
          visits.push_back(visit);
        }
    }
    begins.push_back(static_cast<int>(visits.size()));
  }
};

}  // namespace flashmask::cuda::sm90
