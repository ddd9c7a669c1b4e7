// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flashmask/attention.h"
#include "flashmask/kernels.h"
#include "flashmask/linear_attention.h"
#include "flashmask/span.h"
#include "plan/table_entry.h"

namespace flashmask {

/// A root and all nodes below it.
struct LinearTree {
  std::int64_t first_node = 0, nodes = 0;  ///< of the batch's
  std::int64_t root = 0;                   ///< its number among the roots
  std::int64_t tokens = 0;                 ///< from its first to its last
};

/// An entry of the kernel table for linear attention.
class LinearKernel : public TableEntry {
 public:
  explicit LinearKernel(LinearKernelInfo info) : info_(std::move(info)) {}

  const LinearKernelInfo& info() const { return info_; }

  using TableEntry::refusal;
  using TableEntry::reservation;
  virtual std::string refusal(const LinearProblem&, Direction) const { return ""; }
  virtual std::string reservation(const LinearProblem&, Direction) const { return ""; }
  /// Returns what calls of a plan read on its device; null on the CPU.
  virtual std::shared_ptr<const void> prepare(const LinearPlanContent&) const { return nullptr; }
  /// Return how much of the caller's memory a call takes.
  virtual std::size_t workspace_bytes(const LinearPlanContent&, const LinearForwardTensors&) const { return 0; }
  virtual std::size_t workspace_bytes(const LinearPlanContent&, const LinearBackwardTensors&) const { return 0; }
  virtual void forward(const LinearPlanContent& plan, const LinearForwardTensors& tensors,
                       const Execution& execution) const = 0;
  virtual void backward(const LinearPlanContent& plan, const LinearBackwardTensors& tensors,
                        const Execution& execution) const = 0;

 private:
  LinearKernelInfo info_;
};

/// A kernel of a plan.
struct LinearChoice {
  const LinearKernel* kernel = nullptr;
  std::shared_ptr<const void> prepared;  ///< by the kernel
};

struct LinearPlanContent {
  LinearProblem problem;
  Nodes nodes;
  std::vector<LinearTree> trees;  ///< the longest first
  std::int64_t roots = 0;
  std::vector<Span> padding;       ///< tokens of the batch in no node
  LinearChoice forward, backward;  ///< of the backward there may be none
  std::string backward_refusal;    ///< why there is none

  /// Returns what a kernel of the plan has prepared.
  const void* prepared(const LinearKernel& by) const {
    return forward.kernel == &by ? forward.prepared.get() : backward.prepared.get();
  }
};

/// Returns the nodes of a problem's whole batch. Throws where the mask does not fit the problem or is no tree.
Nodes linear_nodes(const Mask& mask, const LinearProblem& problem);

/// Throws Status::invalid_argument, naming the first tensor that does not fit the plan.
void check_tensors(const LinearPlanContent& plan, const LinearForwardTensors& tensors);
void check_tensors(const LinearPlanContent& plan, const LinearBackwardTensors& tensors);

}  // namespace flashmask
