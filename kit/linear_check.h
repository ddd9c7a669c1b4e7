// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashmask/linear_attention.h"
#include "kit/kernel_check.h"

namespace flashmask::check {

/// Checks kernels of linear attention as check_kernels() checks those of attention, on masks that are trees: o, states
/// and all gradients, against reference::linear_forward() and reference::linear_backward().
class LinearCheck {
 public:
  /// Reads kernel, dtype, device, mask, given and quick of the request. Where it asks for what linear attention does
  /// not have, which is dropout, sinks and a reordering, no kernel is checked. Every plan of it is invariant.
  explicit LinearCheck(const CheckRequest& request);

  bool has_kernels() const { return !kernels_.empty(); }
  /// Whether the request names kernels that lack what else it asks for.
  bool lacking() const { return lacking_; }
  std::int64_t cases() const { return std::ssize(cases_); }
  /// begin: called before each case with its name.
  std::vector<KernelVerdict> run(const std::function<void(const std::string& name)>& begin) const;

 private:
  struct Case {
    std::string name;
    Mask mask;
    LinearProblem problem;  ///< but dtype and device
    bool states;
  };

  void add(const std::string& name, const Mask& mask);
  static void check(const Case& one, const LinearKernelInfo& kernel, Device device, KernelVerdict& verdict);

  CheckRequest request_;
  std::vector<LinearKernelInfo> kernels_;
  bool lacking_ = false;
  std::vector<Case> cases_;
};

}  // namespace flashmask::check
