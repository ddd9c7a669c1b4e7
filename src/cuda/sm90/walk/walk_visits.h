// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "cuda/sm90/walk/walk_arguments.h"
#include "cuda/sm90/walk/walk_tables.h"
#include "plan/linear.h"

namespace flashmask::cuda::sm90 {

/// What each block visits: whole trees of one head and slice, the longest first, each given to the block that has the
/// least to do. Which block walks a tree changes none of its bits.
struct VisitList {
  std::vector<WalkVisit> visits;
  std::vector<int> begins;  ///< [block + 1]
  int slots = 0;            ///< that a block needs, for states where trees fork

  int blocks() const { return begins.empty() ? 0 : static_cast<int>(begins.size()) - 1; }
};

/// The visits of a plan, in memory of the host.
struct WalkVisits {
  VisitList forward, reverse;  ///< of o; of ∂k and ∂v, from last to first
  /// Visits of ∂q, and of the walk that finds divisors, which has one slice of o; empty where gradients have one slice:
  /// ∂q takes the forward's.
  VisitList queries, rows;
  std::vector<WalkVisit> steps;  ///< of the plan, of head 0, by their numbers
  std::vector<std::int64_t> padding;

  WalkVisits(const LinearPlanContent& plan, int most_blocks) {
    const int slices = slices_of(plan.problem), of_keys = key_slices(plan.problem),
              of_gradients = of_keys * value_slices(plan.problem);
    std::vector<Steps> trees, reversed;
    for (const LinearTree& tree : plan.trees) {
      trees.push_back(steps_of(plan, tree));
      reversed.push_back(reversed_steps(plan, tree, trees.back()));
      steps.insert(steps.end(), trees.back().begin(), trees.back().end());
    }
    const auto heads = static_cast<int>(plan.problem.heads);
    deal(forward, trees, heads, slices, slices, most_blocks);
    if (of_gradients > 1) {
      queries.slots = rows.slots = forward.slots;
      deal(queries, trees, heads, of_gradients, of_keys, most_blocks);
      if (plan.problem.normalize) deal(rows, trees, heads, 1, 1, most_blocks);
    }
    deal(reverse, reversed, heads, of_gradients, of_keys, most_blocks);
    for (const Span& span : plan.padding)
      for (std::int64_t token = span.begin; token < span.end; ++token) padding.push_back(token);
  }

 private:
  using Steps = std::vector<WalkVisit>;

  /// Numbers of slots; one is given back when its state has been taken up for the last time.
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

  /// The nodes of a tree, [begin, end), and the parents among them.
  struct TreeNodes {
    const Nodes& nodes;
    std::size_t begin, end;

    TreeNodes(const LinearPlanContent& plan, const LinearTree& tree)
        : nodes(plan.nodes),
          begin(static_cast<std::size_t>(tree.first_node)),
          end(begin + static_cast<std::size_t>(tree.nodes)) {}

    std::size_t count() const { return end - begin; }
    bool has_parent(std::size_t node) const { return node > begin; }
    std::size_t parent(std::size_t node) const { return static_cast<std::size_t>(nodes.parents[node]); }
    /// Whether a node's first step is visited right after its parent's last.
    bool follows_parent(std::size_t node) const { return has_parent(node) && parent(node) + 1 == node; }
  };

  /// Returns the steps of a tree, for head 0 and slice 0. A node whose state is not passed on at once keeps it in a
  /// slot until its last child has begun.
  Steps steps_of(const LinearPlanContent& plan, const LinearTree& tree) {
    const TreeNodes of(plan, tree);
    std::vector<std::size_t> last_child(of.count(), 0);  // of those that do not follow their parent
    for (std::size_t node = of.begin + 1; node < of.end; ++node)
      if (!of.follows_parent(node)) last_child[of.parent(node) - of.begin] = node;
    std::vector<int> slot_of(of.count(), -1);
    Slots slots;
    Steps made;
    for (std::size_t node = of.begin; node < of.end; ++node) {
      int from = kFirstRoot - static_cast<int>(tree.root);
      if (of.has_parent(node)) {
        const std::size_t parent = of.parent(node) - of.begin;
        from = of.follows_parent(node) ? kGoesOn : slot_of[parent];
        if (last_child[parent] == node) slots.give_back(from);
      }
      add_node(made, plan, node, from);
      if (last_child[node - of.begin] != 0) made.back().keep = slot_of[node - of.begin] = slots.take();
    }
    forward.slots = std::max(forward.slots, slots.count());
    return made;
  }

  void add_node(Steps& to, const LinearPlanContent& plan, std::size_t node, int from) const {
    const std::int64_t length = plan.problem.length, end = plan.nodes.ends[node];
    for (std::int64_t token = plan.nodes.begins[node]; token < end; token += kWalkTokens) {
      WalkVisit step{};
      step.batch = static_cast<int>(token / length);
      step.row = static_cast<int>(token % length);
      step.tokens = static_cast<std::uint8_t>(std::min<std::int64_t>(end - token, kWalkTokens));
      step.from = std::exchange(from, kGoesOn);
      step.keep = step.node = -1;
      step.step = static_cast<int>(steps.size() + to.size());
      to.push_back(step);
    }
    to.back().node = static_cast<int>(node);
  }

  /// Returns the steps of a tree from last to first. Children that their parent does not precede add their gradients
  /// up in its slot.
  Steps reversed_steps(const LinearPlanContent& plan, const LinearTree& tree, Steps visits) {
    const TreeNodes of(plan, tree);
    std::vector<int> slot_of(of.count(), -1);
    std::vector<bool> has_follower(of.count());
    for (std::size_t node = of.begin + 1; node < of.end; ++node)
      if (of.follows_parent(node)) has_follower[of.parent(node) - of.begin] = true;
    Slots slots;
    std::ranges::reverse(visits);
    std::size_t at = 0;
    for (std::size_t node = of.end; node-- > of.begin;) {
      const std::size_t own = node - of.begin;
      const auto length = static_cast<std::size_t>(of.nodes.ends[node] - of.nodes.begins[node]);
      const std::size_t last = at + (length + kWalkTokens - 1) / kWalkTokens - 1;
      for (std::size_t i = at; i <= last; ++i) visits[i].from = kGoesOn, visits[i].keep = -1;
      if (slot_of[own] >= 0) {
        visits[at].from = has_follower[own] ? slot_of[own] | kAdds : slot_of[own];
        slots.give_back(slot_of[own]);
      } else if (!has_follower[own]) {
        visits[at].from = kFirstRoot;
      }
      if (of.has_parent(node) && !of.follows_parent(node)) {
        int& slot = slot_of[of.parent(node) - of.begin];
        const bool first = slot < 0;
        if (first) slot = slots.take();
        visits[last].keep = first ? slot : slot | kAdds;
      }
      if (!of.has_parent(node)) visits[last].keep = kFirstRoot - static_cast<int>(tree.root);
      at = last + 1;
    }
    reverse.slots = std::max(reverse.slots, slots.count());
    return visits;
  }

  static void deal(VisitList& to, const std::vector<Steps>& trees, int heads, int slices, int column_slices,
                   int most_blocks) {
    const int lines = heads * slices;
    using Unit = std::pair<int, int>;  // tree, and head × slices + slice
    const auto blocks = static_cast<std::size_t>(std::clamp<std::int64_t>(std::ssize(trees) * lines, 1, most_blocks));
    std::vector<std::vector<Unit>> units(blocks);
    using Load = std::pair<std::int64_t, std::size_t>;  // steps, block
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (std::size_t block = 0; block < blocks; ++block) loads.emplace(0, block);
    for (std::size_t tree = 0; tree < trees.size(); ++tree)
      for (int line = 0; line < lines; ++line) {
        const auto [load, block] = loads.top();
        loads.pop();
        units[block].emplace_back(static_cast<int>(tree), line);
        loads.emplace(load + std::ssize(trees[tree]), block);
      }
    for (const auto& of_block : units) {
      to.begins.push_back(static_cast<int>(to.visits.size()));
      for (const auto& [tree, line] : of_block)
        for (WalkVisit visit : trees[static_cast<std::size_t>(tree)]) {
          visit.head = line / slices;
          visit.slice = static_cast<std::uint8_t>(line % slices);
          visit.inner_slice = static_cast<std::uint8_t>(visit.slice / column_slices);
          visit.column_slice = static_cast<std::uint8_t>(visit.slice % column_slices);
          to.visits.push_back(visit);
        }
    }
    to.begins.push_back(static_cast<int>(to.visits.size()));
  }
};

}  // namespace flashmask::cuda::sm90
